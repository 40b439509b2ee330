//! The form of texts and queries for FTS5.
//!
//! FTS5's tokenizer `unicode61` ends words at characters that are neither letters nor digits. Scripts
//! without spaces between words would give one word per sentence, so their characters are indexed
//! one by one, and queries look for pairs of neighbours.

use std::borrow::Cow;

/// The most terms that a query looks for.
const MAX_TERMS: usize = 64;
/// The most phrases of an expression.
const MAX_PHRASES: usize = 256;
/// A run of characters up to this length is also looked for as a whole.
const MAX_RUN: usize = 8;

/// English words that nearly every passage has. Their weight in BM25 is nearly zero, and scoring all
/// passages that have them is slow. A query of nothing else looks for them all the same.
const STOP_WORDS: [&str; 48] = [
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "did", "do", "does", "for", "from", "has", "have",
    "how", "i", "in", "is", "it", "its", "me", "my", "of", "on", "or", "our", "so", "that", "the", "their", "there",
    "these", "this", "to", "was", "we", "were", "what", "when", "where", "which", "who", "will", "with", "you",
];

/// Whether a character belongs to a script that is written without spaces (Chinese, Japanese), or
/// whose words carry endings that hide them (Korean).
pub(crate) fn is_ideographic(c: char) -> bool {
    matches!(u32::from(c),
        0x1100..=0x11ff // Hangul Jamo
        | 0x2e80..=0x2fdf // radicals
        | 0x3005..=0x3007
        | 0x3040..=0x30ff // Hiragana, Katakana
        | 0x3130..=0x318f
        | 0x31a0..=0x31bf
        | 0x31f0..=0x31ff
        | 0x3400..=0x4dbf // Han
        | 0x4e00..=0x9fff
        | 0xac00..=0xd7ff // Hangul
        | 0xf900..=0xfaff
        | 0xff66..=0xffdc // half-width forms
        | 0x1b000..=0x1b16f
        | 0x20000..=0x3ffff)
}

/// Whether a character belongs to a word, for FTS5 nearly as for us.
pub(crate) fn is_word(c: char) -> bool {
    // Combining accents: FTS5 drops them without ending the word.
    c.is_alphanumeric() || matches!(u32::from(c), 0x300..=0x36f)
}

/// The form in which a text is indexed: ideographic characters stand alone.
pub(crate) fn full_text_form(text: &str) -> Cow<'_, str> {
    // All of these scripts need three bytes per character.
    if text.is_ascii() || !text.chars().any(is_ideographic) {
        return Cow::Borrowed(text);
    }
    let mut form = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if is_ideographic(c) {
            form.extend([' ', c, ' ']);
        } else {
            form.push(c);
        }
    }
    Cow::Owned(form)
}

/// The words of a text, with their offsets in bytes. Ideographic characters are runs of their own.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let class = |c: char| match c {
        c if is_ideographic(c) => Some(true),
        c if is_word(c) => Some(false),
        _ => None,
    };
    let mut chars = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (start, kind) = loop {
            let (start, c) = chars.next()?;
            if let Some(kind) = class(c) {
                break (start, kind);
            }
        };
        while chars.next_if(|(_, c)| class(*c) == Some(kind)).is_some() {}
        let end = chars.peek().map_or(text.len(), |(end, _)| *end);
        Some((start, &text[start..end]))
    })
}

/// The terms of a query, in order and each once; stop words only if there is nothing else.
pub(crate) fn terms(query: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (_, word) in words(query) {
        let word = word.to_lowercase();
        if !all.contains(&word) {
            all.push(word);
        }
        if all.len() >= MAX_TERMS {
            break;
        }
    }
    let is_stop = |word: &String| STOP_WORDS.contains(&word.as_str());
    if all.iter().any(|word| !is_stop(word)) {
        all.retain(|word| !is_stop(word));
    }
    all
}

/// The expression for `MATCH` that finds passages with any of the query's terms; `None`: the query
/// has no words. Everything from the query is in double quotes and has only letters and digits, so
/// no operator of FTS5 can come from it.
pub(crate) fn match_expression(query: &str) -> Option<String> {
    let mut phrases: Vec<String> = Vec::new();
    let mut add = |phrase: String| {
        if phrases.len() < MAX_PHRASES && !phrases.contains(&phrase) {
            phrases.push(phrase);
        }
    };
    for term in terms(query) {
        if !term.starts_with(is_ideographic) {
            add(term);
            continue;
        }
        let characters: Vec<String> = term.chars().map(String::from).collect();
        if characters.len() <= MAX_RUN {
            add(characters.join(" "));
        }
        for pair in characters.windows(2).take(MAX_TERMS) {
            add(pair.join(" "));
        }
    }
    // Words without spaces between them (`std::vec`, `state-of-the-art`) also as they are.
    for compound in query.split_whitespace().take(MAX_TERMS) {
        let parts: Vec<String> = words(compound).map(|(_, word)| word.to_lowercase()).collect();
        if (2..=MAX_RUN).contains(&parts.len()) && parts.iter().all(|part| !part.starts_with(is_ideographic)) {
            add(parts.join(" "));
        }
    }
    let quoted: Vec<String> = phrases.iter().map(|phrase| format!("\"{phrase}\"")).collect();
    (!quoted.is_empty()).then(|| quoted.join(" OR "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideographic_characters_stand_alone() {
        assert_eq!(full_text_form("plain text"), "plain text");
        assert_eq!(full_text_form("ab東京c"), "ab 東  京 c");
        assert_eq!(full_text_form("naïve"), "naïve");
    }

    #[test]
    fn words_have_offsets() {
        let found: Vec<_> = words(" Hello, wörld! 東京tower—2x").collect();
        assert_eq!(found, [(1, "Hello"), (8, "wörld"), (16, "東京"), (22, "tower"), (30, "2x")]);
        assert_eq!(words("").count() + words(" !? ").count(), 0);
    }

    #[test]
    fn queries_become_quoted_phrases() {
        let expression = |query| match_expression(query).unwrap_or_default();
        assert_eq!(expression("What is the Borrow checker?"), "\"borrow\" OR \"checker\"");
        assert_eq!(expression("to be or"), "\"to\" OR \"be\" OR \"or\"");
        assert_eq!(expression("std::vec"), "\"std\" OR \"vec\" OR \"std vec\"");
        assert_eq!(expression("東京都"), "\"東 京 都\" OR \"東 京\" OR \"京 都\"");
        assert_eq!(expression("東"), "\"東\"");
        assert_eq!(match_expression("\"'; -- *()^"), None);
    }

    #[test]
    fn no_operator_comes_from_a_query() {
        for query in ["a AND b NOT c", "NEAR(a b, 2)", "title:x", "^a*", "a\"b", "{title text} : x", "-x +y", "a\0b"] {
            let expression = match_expression(query).unwrap();
            for phrase in expression.split(" OR ") {
                let inner = phrase.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
                assert!(inner.chars().all(|c| c.is_alphanumeric() || c == ' '), "{expression}");
            }
        }
        let long = "word ".repeat(100_000) + &"x".repeat(100_000);
        assert!(match_expression(&long).unwrap().len() < 200_000);
    }
}
