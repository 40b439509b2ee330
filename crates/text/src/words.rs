//! Tokens with their character offsets, for token classification.

use tokenizers::models::ModelWrapper;
use tokenizers::{Encoding, Tokenizer};

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
