"""The texts of the MiniLM goldens that are ours to commit: each one tests a difficulty of the
tokenizer, or a limit."""

import unicodedata
from typing import Any

PLAIN = [
    # Three sentences whose embeddings are published in many places.
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Hello",
    "hello",
    "HELLO WORLD",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Sphinx of black quartz, judge my vow; pack my box with five dozen liquor jugs -- but quickly!",
]

NOTHING = ["", " ", "\n", " \t\r\n  \u00a0\u3000 "]

PUNCTUATION = [
    ".",
    "?!...",
    "--- *** ___ ~~~ \\\\ // || && %% @@ ## $$ ^^",
    "\u201cCurly\u201d \u2018quotes\u2019 \u2014 dashes \u2013 and an ellipsis\u2026 \u00abguillemets\u00bb \u00bfqu\u00e9?",
    "don't can't won't it's rock'n'roll o'clock",
    "state-of-the-art, well-being, e-mail, 24/7, and/or",
]

LANGUAGES = [
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427\u3002",
    "\u4e2d\u6587and English\u6df7\u5408text\u6ca1\u6709\u7a7a\u683c",
    # Beyond the basic multilingual plane, in CJK extension B, which gets spaces around each
    # character like the rest.
    "\U00020000\U0002070e rare ideographs",
    "\u4eca\u65e5\u306f\u3068\u3066\u3082\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002\u30ab\u30bf\u30ab\u30ca\u3001\uff76\uff85",
    # Stripping accents decomposes characters, which splits Hangul syllables and removes the voicing
    # marks of kana.
    "\uc624\ub298\uc740 \ub0a0\uc528\uac00 \uc815\ub9d0 \uc88b\ub124\uc694. \uc0b0\ucc45\ud558\ub7ec \uac00\uc694.",
    "\u0627\u0644\u0637\u0642\u0633 \u062c\u0645\u064a\u0644 \u0627\u0644\u064a\u0648\u0645\u060c \u0641\u0644\u0646\u0630\u0647\u0628 \u0625\u0644\u0649 \u0627\u0644\u062d\u062f\u064a\u0642\u0629.",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \u0628\u0650\u0643\u064f\u0645\u0652",
    "\u05d4\u05d9\u05d5\u05dd \u05de\u05d6\u05d2 \u05d4\u05d0\u05d5\u05d5\u05d9\u05e8 \u05d9\u05e4\u05d4",
    "\u0906\u091c \u092e\u094c\u0938\u092e \u092c\u0939\u0941\u0924 \u0905\u091a\u094d\u091b\u093e \u0939\u0948\u0964",
    "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35\u0e21\u0e32\u0e01",
    "\u039f \u03ba\u03b1\u03b9\u03c1\u03cc\u03c2 \u03b5\u03af\u03bd\u03b1\u03b9 \u03c5\u03c0\u03ad\u03c1\u03bf\u03c7\u03bf\u03c2 \u03c3\u03ae\u03bc\u03b5\u03c1\u03b1. \u039f\u0394\u039f\u03a3",
    "\u0421\u0435\u0433\u043e\u0434\u043d\u044f \u043f\u0440\u0435\u043a\u0440\u0430\u0441\u043d\u0430\u044f \u043f\u043e\u0433\u043e\u0434\u0430, \u0451\u043b\u043a\u0430 \u0438 \u0439\u043e\u0433\u0443\u0440\u0442.",
    "H\u00f4m nay tr\u1eddi \u0111\u1eb9p qu\u00e1, ch\u00fang ta \u0111i d\u1ea1o nh\u00e9.",
    "Die Stra\u00dfe ist gro\u00df, STRASSE, \u00dcbergr\u00f6\u00dfe und \u00c4pfel.",
    # Lower-casing the dotted capital I gives two characters, the second an accent.
    "\u0130stanbul'da I\u015eIK, \u0131\u015f\u0131k ve i\u011fne",
    "Dnes je \u010deskoslovensk\u00fd p\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148.",
]

SYMBOLS = [
    "\U0001f600\U0001f680\u2764\ufe0f I love it \U0001f44d\U0001f3fd",
    "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 flag: \U0001f1eb\U0001f1f7 rainbow: \U0001f3f3\ufe0f\u200d\U0001f308",
    "E = mc\u00b2, \u222b\u2080\u221e e\u207b\u02e3 dx = 1, \u2200x \u2208 \u211d: x \u2264 x\u00b2 \u2228 \u00bd",
    "\U0001d400\U0001d401\U0001d402 bold, \uff26\uff35\uff2c\uff2c\uff37\uff29\uff24\uff34\uff28, \u2460\u2461, \ufb01 ligature, \u2122 \u00ae \u20ac5 \u00a3",
]

ACCENTED = "D\u00e9j\u00e0 vu \u00e0 la cr\u00e8me br\u00fbl\u00e9e, na\u00efve fa\u00e7ade, se\u00f1or \u00c5ngstr\u00f6m"
ACCENTS = [
    unicodedata.normalize("NFC", ACCENTED),
    unicodedata.normalize("NFD", ACCENTED),
    "Z\u0310\u0352a\u0334\u0321l\u0337\u0322g\u0336o\u0335\u0315 t\u0301\u0302\u0303ext",
    "\u0301 an accent with nothing under it",
]

INVISIBLE = [
    "control\u0000\u0001\u0007\u0008\u001b\u007f characters\u0085here",
    "zero\u200bwidth\u200djoiner\u200cnon\u2060word\ufeffmark and soft\u00adhyphen",
    "\u202eright to left override\u202c \u200fmark",
    "replacement \ufffd character, line\u2028separator, paragraph\u2029separator",
    "tabs\tand\nnew\r\nlines\u00a0and\u2003wide\u3000spaces",
]

MACHINES = [
    "https://example.org/a/b?q=1&r=two%20words#frag and user.name+tag@mail.example.com",
    'fn main() { let x: Vec<u8> = vec![0u8; 16]; println!("{:?}", x); } // a comment',
    "SELECT * FROM t WHERE a_b = 'c' AND d >= 1e-6; -- \\n \\t",
    '{"key": [1, 2.5, -3e10, null, true], "nested": {"a": "b"}}',
    "0 1 12 123 1234 12345 1,234,567.89 -42 3.14159265358979 1e-12 0xDEADBEEF 192.168.0.1",
    "2024-02-29T23:59:60Z call +44 20 7946 0958 before 31/12/1999",
    "/usr/local/lib/python3/site-packages/foo_bar.baz-1.2.3.tar.gz",
]

# The tokenizer reads the spelling of a special token in a text as that token, if the case matches.
SPECIAL = [
    "before [SEP] after",
    "The capital of France is [MASK].",
    "[CLS] [UNK] [PAD] [sep] [mask] [CLS][SEP]",
    "[ SEP ] [SEP",
]

LONG_WORDS = [
    # A word of more than 100 characters is one [UNK]; one of 100 is split into pieces.
    "a" * 100,
    "a" * 101,
    "start " + "pneumonoultramicroscopicsilicovolcanoconiosis" * 6 + " end",
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft",
    "\u00e9" * 60 + "e\u0301" * 60,
]

PARAGRAPH = (
    "An encoder reads a whole text at once and gives a vector for every token. "
    "To compare two texts, their vectors are pooled into one each, and the angle between the two is measured. "
    "What the pooling does with the marks at both ends, with a prompt, or with a text that is too long, "
    "is written in files beside the weights, and a reader who skips those files still gets vectors, only not the right ones. "
)
REPEATED = [
    (PARAGRAPH, 1),
    (PARAGRAPH, 2),
    (PARAGRAPH, 6),
    # 254 words and the two special tokens fill the 256 tokens; one more word does not fit.
    ("a ", 253),
    ("a ", 254),
    ("a ", 255),
    ("lorem ", 20000),
    # No space to split at, although each ideograph is a word.
    ("\u8a9e", 3000),
    # One long word that is never split: a single [UNK].
    ("x", 120000),
]


def entries() -> list[dict[str, Any]]:
    plain = (
        PLAIN
        + NOTHING
        + PUNCTUATION
        + LANGUAGES
        + SYMBOLS
        + ACCENTS
        + INVISIBLE
        + MACHINES
        + SPECIAL
        + LONG_WORDS
    )
    return [{"text": text} for text in plain] + [
        {"repeat": text, "times": times} for text, times in REPEATED
    ]
