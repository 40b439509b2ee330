//! Tokens with their character offsets, for token classification.

use crate::{Error, Result};
use std::ops::Range;
use std::sync::OnceLock;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Encoding, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, Tokenizer,
};

/// Python's `\\w+(?:[-_]\\w+)*|\\S`, in its classes of characters: letters and numbers, and as white
/// space the four separators from U+001C on too.
const WORD: &str = r"[\p{L}\p{N}_]+(?:[-_][\p{L}\p{N}_]+)*|[^\s\x1c-\x1f]";

/// The words of a text as the `gliner` package splits it, with their places in characters.
pub fn split_words(text: &str) -> Result<Vec<(&str, Range<usize>)>> {
    static SPLIT: OnceLock<Option<Split>> = OnceLock::new();
    let failed = |what: String| Error::Input(format!("cannot split a text into words: {what}"));
    // What is between the words is removed.
    let split = SPLIT.get_or_init(|| {
        let pattern = SplitPattern::Regex(WORD.into());
        Split::new(pattern, SplitDelimiterBehavior::Removed, true).ok()
    });
    let split = split.as_ref().ok_or_else(|| failed("the pattern is broken".into()))?;
    let mut parts = PreTokenizedString::from(text);
    split.pre_tokenize(&mut parts).map_err(|e| failed(e.to_string()))?;
    let bytes = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let (mut words, mut at, mut chars) = (Vec::new(), 0, 0);
    for (_, (start, end), _) in bytes {
        let (gap, word) =
            text.get(at..start).zip(text.get(start..end)).ok_or_else(|| failed("broken offsets".into()))?;
        let first = chars + gap.chars().count();
        (at, chars) = (end, first + word.chars().count());
        words.push((word, first..chars));
    }
    Ok(words)
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
