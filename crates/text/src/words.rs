//! Tokens with their character offsets, for token classification; and the words of a text.

use crate::{Error, Result};
use std::ops::Range;
use std::sync::OnceLock;
use tokenizers::models::ModelWrapper;
use tokenizers::utils::SysRegex;
use tokenizers::{Encoding, Tokenizer};

/// Python's `\w+(?:[-_]\w+)*|\S`, in its classes of characters: letters and numbers, and as white
/// space the four separators from U+001C on too.
const WORD: &str = r"[\p{L}\p{N}_]+(?:[-_][\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]";

/// A word of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// The word.
    pub text: &'a str,
    /// Its place in the text, in bytes.
    pub bytes: Range<usize>,
    /// Its place in the text, in characters.
    pub chars: Range<usize>,
}

/// The words of a text as the `gliner` package splits it, found one by one: the end of a long text
/// need not be read.
pub fn words(text: &str) -> Result<impl Iterator<Item = Word<'_>>> {
    static PATTERN: OnceLock<Option<SysRegex>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| SysRegex::new(WORD).ok()).as_ref();
    let pattern =
        pattern.ok_or_else(|| Error::Input("cannot split a text into words: the pattern is broken".into()))?;
    let part = move |range: Range<usize>| text.get(range).unwrap_or_default();
    let (mut at, mut chars) = (0, 0);
    Ok(pattern.find_iter(text).map(move |(start, end)| {
        let word = part(start..end);
        let first = chars + part(at..start).chars().count();
        (at, chars) = (end, first + word.chars().count());
        Word { text: word, bytes: start..end, chars: first..chars }
    }))
}

/// A token with its character offsets.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Its id.
    pub id: u32,
    /// Its first character (not byte) in the original text.
    pub start: usize,
    /// The character after its last.
    pub end: usize,
    /// Added by the tokenizer, not part of the text.
    pub special: bool,
    /// Whether it is the first token of a word, as the pre-tokenizer splits words.
    pub starts_word: bool,
}

/// The tokens of an encoding made by `encode_char_offsets`; the offsets of any other count bytes.
pub fn placed(encoding: &Encoding) -> Vec<Placed> {
    let words = encoding.get_word_ids();
    let sequences = encoding.get_sequence_ids();
    let start = |i: usize| {
        let here = (sequences.get(i), words.get(i).copied().flatten());
        here.1.is_some() && (i == 0 || here != (sequences.get(i - 1), words.get(i - 1).copied().flatten()))
    };
    let mask = encoding.get_special_tokens_mask();
    let tokens = encoding.get_ids().iter().zip(encoding.get_offsets()).zip(mask).enumerate();
    tokens
        .map(|(i, ((&id, &(from, to)), &special))| Placed {
            id,
            start: from,
            end: to,
            special: special != 0,
            starts_word: start(i),
        })
        .collect()
}

/// How to tell whether a token continues a word.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// The vocabulary marks continuations (`##ing`), so that the token is longer than the text it
    /// covers. Otherwise a space before the token decides.
    marked: bool,
    /// The unknown token, which never continues a word.
    unk: Option<u32>,
}

impl Continuation {
    /// Reads the rule from the tokenizer's model.
    pub fn of(tokenizer: &Tokenizer) -> Continuation {
        let id = |name: &str| tokenizer.token_to_id(name);
        let (marked, unk) = match tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => (!model.continuing_subword_prefix.is_empty(), id(&model.unk_token)),
            ModelWrapper::BPE(model) => {
                let unk = model.get_unk_token().as_deref().and_then(id);
                let marked = model.get_continuing_subword_prefix().as_deref().is_some_and(|prefix| !prefix.is_empty());
                (marked, unk.or_else(|| id("<unk>")).or_else(|| id("[UNK]")))
            }
            ModelWrapper::WordLevel(model) => (false, id(&model.unk_token)),
            // The library does not expose the unknown piece of a unigram model, but all use one of
            // these names.
            ModelWrapper::Unigram(_) => (false, id("<unk>").or_else(|| id("[UNK]"))),
        };
        Continuation { marked, unk }
    }

    /// The id of the unknown token.
    pub fn unknown(&self) -> Option<u32> {
        self.unk
    }

    /// The token's text, and whether it continues the word before it. `chars` is the text.
    pub fn of_token(&self, tokenizer: &Tokenizer, chars: &[char], token: &Placed) -> (String, bool) {
        let (start, end) = (token.start.min(chars.len()), token.end.min(chars.len()));
        let covered = chars.get(start..end).unwrap_or(&[]);
        if Some(token.id) == self.unk {
            return (covered.iter().collect(), false);
        }
        let text = tokenizer.id_to_token(token.id).unwrap_or_default();
        let subword = if self.marked {
            text.chars().count() != covered.len()
        } else {
            start > 0 && !chars[start - 1..(start + 1).min(chars.len())].contains(&' ')
        };
        (text, subword)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `re`. A combining mark, a zero-width space and a joiner are words; the
    /// separators from U+001C on and a no-break space are white space.
    #[test]
    fn words_are_those_of_the_package() {
        let text = "Jose\u{301} ½x\u{1c}y\u{a0}z\u{200b}q a--b _c-d_ 東京! 👩\u{200d}🚀\u{feff}";
        let want = [
            ("Jose", 0, 4),
            ("\u{301}", 4, 5),
            ("½x", 6, 8),
            ("y", 9, 10),
            ("z", 11, 12),
            ("\u{200b}", 12, 13),
            ("q", 13, 14),
            ("a", 15, 16),
            ("-", 16, 17),
            ("-", 17, 18),
            ("b", 18, 19),
            ("_c-d_", 20, 25),
            ("東京", 26, 28),
            ("!", 28, 29),
            ("👩", 30, 31),
            ("\u{200d}", 31, 32),
            ("🚀", 32, 33),
            ("\u{feff}", 33, 34),
        ];
        let found: Vec<_> = words(text).unwrap().collect();
        assert_eq!(found.iter().map(|w| (w.text, w.chars.start, w.chars.end)).collect::<Vec<_>>(), want);
        assert!(found.iter().all(|word| text[word.bytes.clone()] == *word.text));
        assert_eq!(words(" \t\u{1f}\u{3000}").unwrap().count() + words("").unwrap().count(), 0);
    }
}
