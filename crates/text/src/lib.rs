//! Text to tokens and back: tokenizers from every file format, chat templates, detokenization of a stream.

pub mod aggregate;
pub mod chat;
mod error;
pub mod gguf;
mod guard;
mod open;
mod plain;
mod reader;
mod recipe;
mod special;
mod spm;
pub mod stream;
#[cfg(test)]
mod tests;
mod vocabulary;
pub mod words;

pub use self::error::{Error, Result};
pub use self::open::{open, sound};
pub use self::reader::{Encoded, Reader, TextOrPair, TextOrTokens, Truncate};

use self::plain::Plain;
use self::words::{Continuation, placed};
use sconce_formats::is_gguf;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence as Normalizers};
use tokenizers::{Decoder, TruncationDirection, TruncationParams, TruncationStrategy};

/// Characters that a token stands for at most, so that a text that goes on for megabytes is not tokenized for the sake of its
/// beginning. Only a word that is longer, and so one unknown token, could tell the difference.
pub const LONGEST_TOKEN: usize = 1024;

/// What texts go through besides the tokenizer's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Lower-case the text before the tokenizer sees it.
    pub lower_case: bool,
    /// For models that are a table of words.
    pub table: Option<Table>,
}

/// How a static model reads: without special tokens, and a text may have none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// As sentence-transformers does: every token counts.
    Plain,
    /// As model2vec does: texts are cut to so many median tokens' characters first, and unknown words are left out.
    Model2vec,
}

/// A model's tokenizer, cutting at its longest sequence and never padding.
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// The same that cut elsewhere. Made when first asked for: a large vocabulary takes its time and room.
    others: Mutex<HashMap<Cut, Arc<tokenizers::Tokenizer>>>,
    max_tokens: usize,
    mask: Option<u32>,
    table: Option<Table>,
    /// The most characters of a text that are looked at.
    most_chars: usize,
    /// Of model2vec: the id that stands for unknown words.
    unknown: Option<u32>,
    /// For texts of nothing but ASCII, where the tokenizer is BERT's.
    plain: Option<Plain>,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextToken {
    /// Its id.
    pub id: u32,
    /// The part of the text that it stands for; of a special token its name.
    pub text: String,
    /// Whether it was put there by the tokenizer, not by the text.
    pub special: bool,
    /// Characters (not bytes) of the text: the first, and the one after the last. A special token has none.
    pub place: Option<(usize, usize)>,
}

/// Where sequences are cut: tokens that are left, and of which end.
type Cut = Option<(usize, bool)>;

impl Tokenizer {
    /// Reads the tokenizer in `dir`, or in a GGUF file. What it says of padding and length is replaced: those belong to how somebody once exported
    /// it.
    pub fn load(dir: &Path, max_tokens: usize, manner: Manner) -> Result<Tokenizer> {
        let mut inner = match is_gguf(dir) {
            true => gguf::open(dir)?,
            false => open(dir)?,
        };
        inner.with_padding(None);
        let adapt = || {
            inner.with_truncation(Some(truncation(max_tokens)))?;
            if manner.lower_case {
                let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
                steps.extend(inner.get_normalizer().cloned());
                inner.with_normalizer(Some(Normalizers::new(steps)))?;
            }
            Ok(())
        };
        sound(adapt).map_err(|e| Error::file(dir, format!("cannot cut at {max_tokens} tokens: {e}")))?;
        let mask = ["[MASK]", "<mask>"].iter().find_map(|token| inner.token_to_id(token));
        let model2vec = manner.table == Some(Table::Model2vec);
        let per_token = if model2vec { median_length(&inner) } else { LONGEST_TOKEN };
        let most_chars = max_tokens.saturating_mul(per_token);
        let unknown = if model2vec { Continuation::of(&inner).unknown() } else { None };
        let plain = if manner.table.is_none() { Plain::of(&inner) } else { None };
        let (inner, others) = (Arc::new(inner), Mutex::default());
        Ok(Tokenizer { inner, others, max_tokens, mask, table: manner.table, most_chars, unknown, plain })
    }

    /// Reads texts, and deals so with those that are too long.
    pub fn reader(&self, truncate: Truncate) -> Reader<'_> {
        Reader { tokenizer: self, truncate }
    }

    /// The tokens of a text, uncut.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        text_tokens(&*self.cutting(None)?, text, special && self.table.is_none())
    }

    /// The text of tokens.
    pub fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        text_of(&self.inner, ids, skip_special)
    }

    /// The longest sequence.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The library's tokenizer that cuts there; the same every time.
    fn cutting(&self, cut: Cut) -> Result<Arc<tokenizers::Tokenizer>> {
        if cut == Some((self.max_tokens, false)) {
            return Ok(self.inner.clone());
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = others.get(&cut) {
            return Ok(other.clone());
        }
        let mut other = (*self.inner).clone();
        let params = cut.map(|(most, left)| TruncationParams {
            direction: if left { TruncationDirection::Left } else { TruncationDirection::Right },
            ..truncation(most)
        });
        sound(|| other.with_truncation(params).map(drop))
            .map_err(|e| Error::Input(format!("texts cannot be cut at {} tokens: {e}", cut.map_or(0, |c| c.0))))?;
        let other = Arc::new(other);
        others.insert(cut, other.clone());
        Ok(other)
    }

    /// The id of the mask token, if there is one.
    pub fn mask(&self) -> Option<u32> {
        self.mask
    }

    /// Whether the model's table of `words` holds this vocabulary. What every text gets must be in it; of words that are not, and
    /// that a text may or may not have, a note tells.
    pub fn check(&self, dir: &Path, words: usize) -> Result<Option<String>> {
        let beyond = self.inner.get_vocab(true).into_iter().filter(|(_, id)| *id as usize >= words);
        let Some((token, id)) = beyond.max_by_key(|(_, id)| *id) else { return Ok(None) };
        let what = format!("the tokenizer's token {token:?} has id {id}, and the model's table has {words} words");
        let always = sound(|| self.inner.encode("", self.table.is_none())).map_err(|e| Error::file(dir, e))?;
        if always.get_ids().iter().any(|id| *id as usize >= words) {
            return Err(Error::file(dir, format!("{what}; do tokenizer and model belong together?")));
        }
        Ok(Some(format!("{what}: texts that use it will fail")))
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token that is written so in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The library's tokenizer, for what it knows of words.
    pub fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Tokens written together, as the tokenizer does it.
    pub fn join(&self, tokens: Vec<String>) -> String {
        match self.inner.get_decoder() {
            Some(decoder) => sound(|| decoder.decode(tokens.clone())).unwrap_or_else(|_| tokens.join(" ")),
            None => tokens.join(" "),
        }
    }
}

/// The tokens of a text and where in it they come from.
pub fn text_tokens(tokenizer: &tokenizers::Tokenizer, text: &str, special: bool) -> Result<Vec<TextToken>> {
    let encoding = sound(|| tokenizer.encode_char_offsets(text, special))
        .map_err(|e| Error::Input(format!("the tokenizer failed on {} bytes: {e}", text.len())))?;
    let chars: Vec<char> = text.chars().collect();
    let of = |(place, name): (words::Placed, &String)| {
        let (start, end) = (place.start.min(chars.len()), place.end.min(chars.len()));
        let text = if place.special { name.clone() } else { chars.get(start..end).unwrap_or(&[]).iter().collect() };
        TextToken { id: place.id, text, special: place.special, place: (!place.special).then_some((start, end)) }
    };
    Ok(placed(&encoding).into_iter().zip(encoding.get_tokens()).map(of).collect())
}

/// The text of tokens.
pub fn text_of(tokenizer: &tokenizers::Tokenizer, ids: &[u32], skip_special: bool) -> Result<String> {
    if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
        return Err(Error::Input(format!("token {id} is beyond the tokenizer's words")));
    }
    sound(|| tokenizer.decode(ids, skip_special)).map_err(Error::Input)
}

/// The median length of the vocabulary's tokens, in characters, its fraction cut off.
fn median_length(tokenizer: &tokenizers::Tokenizer) -> usize {
    let mut lengths: Vec<usize> = tokenizer.get_vocab(true).keys().map(|token| token.chars().count()).collect();
    lengths.sort_unstable();
    match lengths.len() {
        0 => 1,
        n => ((lengths[(n - 1) / 2] + lengths[n / 2]) / 2).max(1),
    }
}

fn truncation(max_length: usize) -> TruncationParams {
    let (strategy, direction) = (TruncationStrategy::LongestFirst, TruncationDirection::Right);
    TruncationParams { max_length, strategy, stride: 0, direction }
}
