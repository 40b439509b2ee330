//! Text to tokens, in parallel, with truncation told.

pub(crate) mod advice;
pub(crate) mod aggregate;
pub(crate) mod chat;
pub(crate) mod gguf;
mod guard;
pub(crate) mod lm;
mod open;
mod recipe;
mod special;
mod spm;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod vocabulary;
pub(crate) mod words;

use self::open::{open, sound};
use self::words::{Continuation, Placed, placed};
use crate::classifier::TextOrPair;
use crate::load::is_gguf;
use crate::{Error, Result};
use rayon::prelude::*;
use sconce_models::Sequence;
use std::path::Path;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence as Normalizers};
use tokenizers::{Decoder, EncodeInput, TruncationDirection, TruncationParams, TruncationStrategy};

/// Characters that a token stands for at most, so that a text that goes on for megabytes is not tokenized for the sake of its
/// beginning. Only a word that is longer, and so one unknown token, could tell the difference.
const LONGEST_TOKEN: usize = 1024;

/// What texts go through besides the tokenizer's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Lower-case the text before the tokenizer sees it.
    pub(crate) lower_case: bool,
    /// For models that are a table of words.
    pub(crate) table: Option<Table>,
}

/// How a static model reads: without special tokens, and a text may have none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// As sentence-transformers does: every token counts.
    Plain,
    /// As model2vec does: texts are cut to so many median tokens' characters first, and unknown words are left out.
    Model2vec,
}

/// A model's tokenizer, cutting at its longest sequence and never padding.
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    max_tokens: usize,
    mask: Option<u32>,
    table: Option<Table>,
    /// The most characters of a text that are looked at.
    most_chars: usize,
    /// Of model2vec: the id that stands for unknown words.
    unknown: Option<u32>,
}

/// A text as the model will see it.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) sequence: Sequence,
    /// Whether the text was longer than the model can take.
    pub(crate) truncated: bool,
    /// Whether the last token is a special one, such as `[SEP]`.
    ends_special: bool,
    /// Whether the first one is, such as `[CLS]`.
    pub(crate) starts_special: bool,
}

impl Tokenizer {
    /// Reads the tokenizer in `dir`, or in a GGUF file. What it says of padding and length is replaced: those belong to how somebody once exported
    /// it.
    pub(crate) fn load(dir: &Path, max_tokens: usize, manner: Manner) -> Result<Tokenizer> {
        let mut inner = match is_gguf(dir) {
            true => gguf::open(dir)?,
            false => open(dir).map_err(|fault| Error::file(&fault.path, fault.what))?,
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
        Ok(Tokenizer { inner, max_tokens, mask, table: manner.table, most_chars, unknown })
    }

    /// Tokens of every text, in order.
    pub(crate) fn encode<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str) -> Result<Vec<Encoded>> {
        self.encode_to(texts, prompt, self.max_tokens)
    }

    /// The same, cut at `most` tokens where that is less than the model can take.
    pub(crate) fn encode_to<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        prompt: &str,
        most: usize,
    ) -> Result<Vec<Encoded>> {
        let shorter = if most < self.max_tokens { Some(self.cutting_at(most)?) } else { None };
        let tokenizer = shorter.as_ref().unwrap_or(self);
        let encode = |(i, text): (usize, &T)| {
            tokenizer.encode_one(text.as_ref(), prompt).map_err(|why| Error::Text { text: i, why })
        };
        texts.par_iter().enumerate().map(encode).collect()
    }

    /// The longest sequence.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    fn cutting_at(&self, max_tokens: usize) -> Result<Tokenizer> {
        let mut inner = self.inner.clone();
        sound(|| inner.with_truncation(Some(truncation(max_tokens))).map(drop))
            .map_err(|e| Error::Input(format!("texts cannot be cut at {max_tokens} tokens: {e}")))?;
        Ok(Tokenizer { inner, max_tokens, ..*self })
    }

    /// The id of the mask token, if there is one.
    pub(crate) fn mask(&self) -> Option<u32> {
        self.mask
    }

    /// Tokens of texts and pairs, in order; of a pair the longer text is cut first.
    pub(crate) fn encode_pairs(&self, texts: &[TextOrPair<'_>]) -> Result<Vec<Encoded>> {
        let encode = |(i, t): (usize, &TextOrPair<'_>)| {
            let bytes = t.text.len() + t.pair.map_or(0, str::len);
            let input = match t.pair {
                Some(pair) => EncodeInput::from((t.text, pair)),
                None => EncodeInput::from(t.text),
            };
            self.encode_input(input, bytes).map_err(|why| Error::Text { text: i, why })
        };
        texts.par_iter().enumerate().map(encode).collect()
    }

    /// Tokens of every text without those that begin and end one, cut at `most`.
    pub(crate) fn encode_bare<T: AsRef<str> + Sync>(&self, texts: &[T], most: usize) -> Result<Vec<Encoded>> {
        let encode = |(i, text): (usize, &T)| {
            let text = text.as_ref();
            let end = text.char_indices().nth(self.most_chars).map_or(text.len(), |(i, _)| i);
            let encoding = sound(|| self.inner.encode(&text[..end], false))
                .map_err(|e| format!("the tokenizer failed on its {} bytes: {e}", text.len()));
            let mut encoded = encoding.and_then(|e| self.checked(&e)).map_err(|why| Error::Text { text: i, why })?;
            encoded.truncated |= end < text.len() || encoded.sequence.ids.len() > most;
            encoded.sequence.ids.truncate(most);
            encoded.sequence.types.clear();
            Ok(encoded)
        };
        texts.par_iter().enumerate().map(encode).collect()
    }

    /// Whether the model's table of `words` holds this vocabulary. What every text gets must be in it; of words that are not, and
    /// that a text may or may not have, a note tells.
    pub(crate) fn check(&self, dir: &Path, words: usize) -> Result<Option<String>> {
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
    pub(crate) fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token that is written so in the vocabulary.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Tokens of every text with their places in it, in order.
    pub(crate) fn encode_placed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Vec<(Encoded, Vec<Placed>)>> {
        let encode = |(i, text): (usize, &T)| {
            let text = text.as_ref();
            let encoding = sound(|| self.inner.encode_char_offsets(text, true))
                .map_err(|e| format!("the tokenizer failed on its {} bytes: {e}", text.len()))
                .and_then(|encoding| Ok((self.checked(&encoding)?, placed(&encoding))));
            encoding.map_err(|why| Error::Text { text: i, why })
        };
        texts.par_iter().enumerate().map(encode).collect()
    }

    /// The library's tokenizer, for what it knows of words.
    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Tokens written together, as the tokenizer does it.
    pub(crate) fn join(&self, tokens: Vec<String>) -> String {
        match self.inner.get_decoder() {
            Some(decoder) => sound(|| decoder.decode(tokens.clone())).unwrap_or_else(|_| tokens.join(" ")),
            None => tokens.join(" "),
        }
    }

    /// How many tokens at the head of a sequence belong to `prompt`: its own, and the special ones before them.
    pub(crate) fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let encoded = self.encode_one(prompt, "").map_err(|e| Error::Input(format!("the prompt: {e}")))?;
        Ok(encoded.sequence.ids.len() - usize::from(encoded.ends_special))
    }

    fn encode_one(&self, text: &str, prompt: &str) -> Result<Encoded, String> {
        let joined = if prompt.is_empty() { text } else { &format!("{prompt}{text}") };
        let end = joined.char_indices().nth(self.most_chars).map_or(joined.len(), |(i, _)| i);
        let mut encoded = self.encode_input(EncodeInput::from(&joined[..end]), text.len())?;
        encoded.truncated |= end < joined.len();
        if let Some(unknown) = self.unknown {
            encoded.sequence.ids.retain(|id| *id != unknown);
            encoded.sequence.types.clear();
        }
        Ok(encoded)
    }

    fn encode_input(&self, input: EncodeInput<'_>, bytes: usize) -> Result<Encoded, String> {
        let encoding = sound(|| self.inner.encode(input, self.table.is_none()))
            .map_err(|e| format!("the tokenizer failed on its {bytes} bytes: {e}"))?;
        self.checked(&encoding)
    }

    fn checked(&self, encoding: &tokenizers::Encoding) -> Result<Encoded, String> {
        if encoding.is_empty() && self.table.is_none() {
            return Err("this tokenizer makes no token of it, so it has no vector".into());
        }
        // A template that adds more special tokens than there is room for is not cut by the library.
        if encoding.len() > self.max_tokens {
            return Err(format!("it comes to {} tokens, and the model takes {}", encoding.len(), self.max_tokens));
        }
        Ok(Encoded {
            sequence: Sequence {
                ids: encoding.get_ids().to_vec(),
                types: encoding.get_type_ids().to_vec(),
                keys: None,
            },
            truncated: !encoding.get_overflowing().is_empty(),
            ends_special: encoding.get_special_tokens_mask().last() == Some(&1),
            starts_special: encoding.get_special_tokens_mask().first() == Some(&1),
        })
    }
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
