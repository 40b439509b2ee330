"""Our own texts: some to train tiny vocabularies, some to challenge tokenizers."""

CORPUS = """The quick brown fox jumps over the lazy dog while seven small birds watch from the old stone wall.
She said that the museum in Zürich opens at nine, but the trains from Genève were late again.
Mr. O'Brien's naïve résumé didn't impress anyone at the café; they'd seen it before, he'll say.
Anna Müller works for Northwind Traders in Hamburg and lives with her brother in Lübeck.
Prices rose by 12.5% in 2024, from $1,299.00 to $1,461.38, and nobody was surprised.
Un petit garçon mange une pomme rouge dans le jardin derrière l'école de son village.
Où est la bibliothèque? Elle est près de la gare, à côté du vieux théâtre.
Der schnelle braune Fuchs springt über den faulen Hund, und niemand weiß warum.
El niño comió una manzana mañana por la mañana en la montaña de España.
東京は日本の首都です。私は毎日電車で学校に行きます。
我喜欢在北京的老城区散步，那里有很多小吃。
한국어 문장은 띄어쓰기가 중요합니다.
Москва столица России, а Киев столица Украины.
Το γρήγορο καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
Reading, writing, thinking: all three are the same work done at different speeds.
The tokenizer splits unbelievable words into believable pieces, and pieces into characters.
tokens tokenized tokenizing tokenization retokenize words wording wordless sword password
Send it to info@example.org or see https://example.org/a/b?c=d&e=f#g for more information.
one two three four five six seven eight nine ten eleven twelve thirteen fourteen
for (int i = 0; i < n; i++) { total += values[i] * weights[i]; } // sum of products
""".strip().split("\n")

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  The quick   brown fox jumps\tover\nthe lazy dog.  ",
    "Anna Müller works for Northwind Traders in Hamburg.",
    "naïve café résumé Ångström ǅ ß ẞ İstanbul ΣΑΣ ﬁn",
    "e\u0301 vs é, n\u0303 vs ñ, \u1100\u1161\u11a8 vs 각, a\u0328\u0301\u0323",
    "東京は日本の首都です。我喜欢北京",
    "ﾊﾝｶｸ ｶﾞ Ｆｕｌｌ　ｗｉｄｔｈ １２３ ㌔ ㈱ ½ x² ™ …",
    "👩‍👩‍👧‍👦 family 🇫🇷 flag 👍🏽 ok ❤️ done 🙂",
    "tab\there\rcr\r\ncrlf\u000bvt\u000cff\u0085nel\u00a0nbsp\u2003em\u2028ls\u3000ideo",
    "zero\u200bwidth\u200cnon\u200djoin\u2060er\ufeffbom\u00adsoft",
    "null\u0000byte \u0001\u0007\u001f\u007f control \ufffd \ue000 private",
    "[CLS] literal [SEP] tokens [MASK] in[UNK]side [PAD]",
    "<s> literal </s> tokens <mask> in<unk>side <pad> <s>NOTUSED",
    " <mask>  two <mask>\n[MASK] <extra_id_0>x <extra_id_99> <|endoftext|> y <|startoftext|>",
    "don't won't I'll they've he'd you're it's I'M IT'S 'tis ''quoted'' ``back``",
    "Send it to info@example.org, see https://example.org/a/b?c=d&e=f#g !!! ??? --- ___",
    "12.5% of $1,299.00 is 162.375; 10,000 and 3,14 and 1,,2",
    "Привет, мир! Το γρήγορο 한국어 שלום مرحبا नमस्ते ไทย ﷺ",
    "word\u2581under\u2581score \u2581lead \u2581\u2581two _x_",
    "x" * 105 + " short " + "donaudampfschifffahrt" * 2,
    "東" * 12 + "a" * 12,
    "unbelievable tokenization <new_tok> ab<new_tok>cd [SPECIAL1] and NEWWORD newword",
    "\U00010348\U0001f9ff\U000e0041 astral",
    "<0x41> byte <0x0A> literal ¿? é\u0301",
    "  lead", "trail  ", "\u00a0", "\n\n", "a  b", "-", "##ing", "</w>", "Ġspace ▁", "A.B.C. U.S.A.'s", "''", "!?",
]

PAIRS = [(3, 5), (0, 3), (3, 0), (14, 15), (9, 10), (4, 24), (29, 30)]

# A few rules of the full normalization, so that a committed model stays small.
RULES = {
    "\u00a0": " ", "\u2003": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": " ", "\u0085": " ", "\u2028": " ", "\u200b": " ",
    "\u0001": "", "\u0007": "", "\u007f": "", "\ufeff": " ", "ﬁ": "fi", "½": "1⁄2", "²": "2", "™": "TM", "…": "...",
    "ｶﾞ": "ガ", "ｶ": "カ", "ﾊ": "ハ", "ﾝ": "ン", "ｸ": "ク", "Ｆ": "F", "ｕ": "u", "ｌ": "l", "１": "1", "２": "2", "３": "3",
    "e\u0301": "é", "n\u0303": "ñ", "㌔": "キロ", "ﷺ": "صلى", "\u1100\u1161\u11a8": "각",
}
