//! Texts of all kinds, for comparing formats and devices on real models.

use crate::Rng;

const WORDS: &str = "the a of and to in is was for on that with as by at from this be are not dog house river \
    embedding transformer Paris London 1984 3.14 economy minister cricket quantum protein kernel throughput \
    naïve façade Größe Zürich running jumped quickly beautiful however therefore 'quoted' (brackets) e-mail";
const CJK: [&str; 6] =
    ["東京は日本の首都です。", "今天天气很好，我们去公园散步。", "한국어 문장입니다.", "人工智能", "。", "ありがとう"];
const SYMBOLS: [&str; 6] = ["😀", "👩‍👩‍👧‍👦 family", "→ ∑ ∞ ≠", "\u{200b}\u{feff}", "!!!", "🇩🇪🇫🇷"];
const SCRIPTS: [&str; 6] =
    ["Привет, как дела?", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "Γειά σου Κόσμε", "สวัสดีชาวโลก"];
const FORMAL: [&str; 6] = [
    "fn main() { println!(\"{}\", 1 + 1); }",
    "SELECT * FROM t WHERE id = 42;",
    "https://example.org/a/b?c=d#e",
    "{\"key\": [1, 2, 3]}",
    "0123456789 0123456789",
    "AAAAAAAAAAAAAAAAAAAAAAAA",
];

/// 300 texts: none at all, one word, sentences and paragraphs, other scripts, code, symbols, one
/// word 700 times, and texts beyond any model's limit.
pub fn mixed_texts() -> Vec<String> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut rng = Rng::new(300);
    let mut sentence = |n: usize| -> String {
        let all: Vec<&str> = (0..n).map(|_| words[rng.below(words.len())]).collect();
        all.join(" ") + "."
    };
    let mut texts = vec![String::new(), " ".into(), "\n\t".into(), "a".into()];
    texts.extend(["word ", "dog ", "the ", "😀", "東"].map(|word| word.repeat(700)));
    texts.extend([sentence(5_000), CJK.concat().repeat(200)]);
    for all in [CJK, SYMBOLS, SCRIPTS, FORMAL] {
        texts.extend(all.iter().map(ToString::to_string));
        texts.extend(all.iter().map(|text| format!("{} {text} {}", sentence(4), sentence(7))));
    }
    while texts.len() < 300 {
        let n = match texts.len() % 8 {
            0 => 120,
            1 | 2 => 40,
            3 | 4 => 3,
            _ => 12,
        };
        texts.push(sentence(n));
    }
    texts
}
