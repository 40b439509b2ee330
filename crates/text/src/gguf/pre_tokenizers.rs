//! Pre-tokenizers of BPE vocabularies, one for each name that `tokenizer.ggml.pre` may have. The
//! regular expressions are llama.cpp's, because a GGUF file was evaluated with its ids. Where
//! llama.cpp approximates a character class that C++ cannot name (`\p{Lu}` becomes any letter),
//! these do too.

/// The pre-tokenizer for a name in `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// Regular expressions, applied in order to the pieces of the one before. Each match becomes a
    /// piece, and so does the text between matches.
    pub(super) cuts: &'static [&'static str],
    pub(super) alphabet: Alphabet,
    /// Whether a word in the vocabulary becomes one token without merging (`ignore_merges`).
    pub(super) whole_words: bool,
    pub(super) add_bos: AddBos,
}

/// Whether a text begins with the BOS token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AddBos {
    /// No, unless the file says yes.
    No,
    /// Yes, unless the file says no.
    Yes,
    /// Always: the first Gemma 4 files said no, and the models need it.
    Always,
}

/// How the vocabulary writes text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Alphabet {
    /// GPT-2's byte-level alphabet: a printable character for each byte.
    Bytes,
    /// Text with U+2581 for spaces, and a byte-fallback token `<0x0A>` for each byte, as in
    /// SentencePiece.
    Pieces,
    /// Plain text without white space.
    Words,
}

/// English contractions, in either case.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}
/// Runs of white space; the last character goes with the word that follows.
macro_rules! spaces {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
/// A word that may begin with one character that is neither letter, digit nor line end.
macro_rules! word {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}
/// Punctuation and symbols, with a space before and line ends after them.
macro_rules! signs {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    };
}
/// Words of DeepSeek V3.
macro_rules! deepseek_words {
    () => {
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##
    };
}
/// Words that split at a change of case, and what may follow: `$up` and `$low` are the letters
/// before and after the change.
macro_rules! cased {
    ($up:literal, $low:literal, $tail:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $up,
            "*",
            $low,
            "+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?",
            $up,
            "+",
            $low,
            "*",
            $tail,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
            spaces!()
        )
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(contractions!(), "|", word!(), r"|\p{N}{1,3}|", signs!(), "|", spaces!());
const QWEN2: &str = concat!(contractions!(), "|", word!(), r"|\p{N}|", signs!(), "|", spaces!());
const QWEN35: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|", spaces!());
const JAIS2: &str = concat!(
    contractions!(),
    "|",
    word!(),
    r"|\p{N}{1,3}|",
    signs!(),
    r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)",
    r"|\s{1,2}(?!\S)|\s{1}"
);
const UFAKZEKA: &str = concat!(word!(), r"|\p{N}|", signs!(), "|", spaces!());
const MINICPM5: &str = concat!(contractions!(), "|", word!(), r"|\p{N}+|", signs!(), "|", spaces!());
const BAILING: &str =
    concat!(r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|", word!(), r"|\p{N}|", signs!(), r"|\s*[\r\n]|\s+(?!\S)|\s+");
const SEED: &str = concat!(contractions!(), "|", word!(), r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|", spaces!());
const EXAONE_MOE: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);
const TEKKEN: &str = cased!(r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", "", r"\p{N}");
const GPT4O: &str = cased!(r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", concat!(contractions!(), "?"), r"\p{N}{1,3}");
const GRANITE: &str =
    cased!(r"[\p{L}\p{M}&&[^a-z]]", r"[\p{L}\p{M}&&[^A-Z]]", concat!(contractions!(), "?"), r"\p{N}{1,3}");
const AYA: &str = cased!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?"), r"\p{N}{1,3}");
const YOUTU: &str = cased!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?"), r"\p{N}");
/// Chinese characters are words of their own. The ranges are those of llama.cpp.
const KIMI: &str = concat!(
    r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}",
    r"\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]]+",
    contractions!(),
    r"?|\p{N}{1,3}|",
    signs!(),
    "|",
    spaces!()
);
const LINES: &str = r"\n+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
/// A run of digits with all non-digits before it.
const UP_TO_DIGITS: &str = r"\P{N}*\p{N}+";
/// Splits such a run into groups of three digits from the right; the first group may have one or
/// two. Text before the digits stays with the first group, so that later expressions see what
/// follows that text. Only the first group looks ahead: with a look-ahead at each group, the time
/// would be quadratic in the number of digits.
const THREES_FROM_THE_RIGHT: &str = r"^\P{N}*+\p{N}{1,2}(?=(?:\p{N}{3})+$)|^\P{N}*+\p{N}{3}|\p{N}{3}";
const ASCII_THREES_FROM_THE_RIGHT: &str = r"^[0-9]{1,2}(?=(?:[0-9]{3})+$)|[0-9]{3}";
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
/// The ranges contain more than Han and Hangul, and exclude white space. llama.cpp excludes it too:
/// the white space of C++ regular expressions is only ASCII, so llama.cpp replaces the other kinds.
const HAN_AND_HANGUL: &str = r"[[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]&&\S]+";
const HAN_AND_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const DEEPSEEK3: &str = concat!(deepseek_words!(), r"| ?[\p{P}\p{S}]+[\r\n]*|", spaces!());
const SPARK: &str = concat!(deepseek_words!(), r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+");
/// Letters with case, as ranges.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}",
    r"\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}",
    r"\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}",
    r"\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}",
    r"\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
    r"\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}",
    r"\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
    r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
    r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+"
);
const DEEPSEEK_SIGNS: &str = r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3001}\u{3002}]+";
const YOUTU_SCRIPTS: &str = concat!(
    r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}",
    r"\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+",
    r"|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
);
const AFMOE_SCRIPTS: &str = concat!(
    r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}",
    r"\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}",
    r"\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
);
const FALCON_SIGNS: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DEFAULT_SIGNS: &str = r"[\p{P}\$\+<=>\^~\|]+";
const THREE_ASCII_DIGITS: &str = "[0-9][0-9][0-9]";

/// The pre-tokenizer of a name. `None` if the name is unknown, so that no text is split in a way
/// the model never saw.
pub(super) fn pre_tokenizer(pre: Option<&str>) -> Option<PreTokenizer> {
    let bytes = |cuts| PreTokenizer { cuts, alphabet: Alphabet::Bytes, whole_words: false, add_bos: AddBos::No };
    let whole = |cuts| PreTokenizer { whole_words: true, ..bytes(cuts) };
    let pieces = PreTokenizer { alphabet: Alphabet::Pieces, ..bytes(&[LINES]) };
    Some(match pre.unwrap_or("default") {
        "" | "default" => bytes(&[DEFAULT_SIGNS, GPT2, DIGITS, THREE_ASCII_DIGITS]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => PreTokenizer { add_bos: AddBos::Yes, ..whole(&[LLAMA3]) },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => bytes(&[LLAMA3]),
        "glm4" | "glm5" => whole(&[LLAMA3]),
        "jais-2" => bytes(&[JAIS2]),
        "minicpm5" => whole(&[THREE_DIGITS, MINICPM5]),
        "deepseek-llm" => bytes(&[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_SIGNS, r"\s+$", HAN_AND_HANGUL, DIGITS]),
        "deepseek-coder" => bytes(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, DIGIT]),
        "deepseek-v3" | "hunyuan-dense" | "hy_v4" | "joyai-llm" => bytes(&[THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3]),
        "spark2_5" => bytes(&[THREE_DIGITS, HAN_AND_KANA, SPARK, DIGIT]),
        "youtu" => whole(&[YOUTU_SCRIPTS, YOUTU]),
        "falcon" => bytes(&[FALCON_SIGNS, GPT2, THREE_ASCII_DIGITS]),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            bytes(&[DIGIT, GPT2])
        }
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de" | "a.x-4.0" | "mellum"
        | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "exaone4" | "mpt" | "olmo" | "jais"
        | "trillion" | "granite-docling" => bytes(&[GPT2]),
        "stablelm2" | "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "hunyuan" | "solar-open"
        | "grok-2" => bytes(&[QWEN2]),
        "qwen35" => bytes(&[QWEN35]),
        "laguna" => bytes(&[LINES, QWEN2]),
        "ufakzeka" => bytes(&[UFAKZEKA]),
        "poro-chat" | "bloom" | "gpt3-finnish" => bytes(&[BLOOM]),
        "viking" => bytes(&[BLOOM, DIGIT]),
        "tekken" => PreTokenizer { add_bos: AddBos::Yes, ..whole(&[TEKKEN]) },
        "chameleon" => PreTokenizer {
            add_bos: AddBos::Yes,
            ..bytes(&[
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ])
        },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => bytes(&[GPT4O]),
        "granite-embed-multi-97m" => whole(&[GRANITE]),
        "tiny_aya" | "cohere2moe" => bytes(&[UP_TO_DIGITS, THREES_FROM_THE_RIGHT, AYA]),
        "afmoe" => bytes(&[UP_TO_DIGITS, THREES_FROM_THE_RIGHT, AFMOE_SCRIPTS, DEEPSEEK3]),
        "superbpe" => bytes(&[DIGITS, ASCII_THREES_FROM_THE_RIGHT]),
        "kimi-k2" => bytes(&[KIMI]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => bytes(&[BAILING]),
        "seed-coder" => bytes(&[SEED]),
        "exaone-moe" => bytes(&[EXAONE_MOE]),
        "gemma4" | "granite-embed-multi-311m" => PreTokenizer { add_bos: AddBos::Always, ..pieces },
        "sarvam-moe" => pieces,
        "whitespace" => PreTokenizer { alphabet: Alphabet::Words, ..bytes(&[]) },
        _ => return None,
    })
}
