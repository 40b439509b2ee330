//! Text to tokens, in parallel, with truncation told.

use crate::load::bytes;
use crate::{Error, Result};
use rayon::prelude::*;
use sconce_models::Sequence;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence as Normalizers};
use tokenizers::{TruncationDirection, TruncationParams, TruncationStrategy};

/// The largest vocabularies are some 30 MB of JSON.
const LARGEST: u64 = 256 << 20;

/// A model's tokenizer, cutting at its longest sequence and never padding.
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

/// A text as the model will see it.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) sequence: Sequence,
    /// Whether the text was longer than the model can take.
    pub(crate) truncated: bool,
    /// Whether the last token is a special one, such as `[SEP]`.
    ends_special: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json`. What it says of padding and length is replaced: those belong to how somebody once exported it.
    pub(crate) fn load(path: &Path, max_tokens: usize, lower_case: bool) -> Result<Tokenizer> {
        let bytes = bytes(path, LARGEST)?;
        let mut inner = sound(|| tokenizers::Tokenizer::from_bytes(&bytes))
            .map_err(|e| Error::file(path, format!("not a tokenizer that can be used: {e}")))?;
        inner.with_padding(None);
        inner
            .with_truncation(Some(TruncationParams {
                max_length: max_tokens,
                strategy: TruncationStrategy::LongestFirst,
                stride: 0,
                direction: TruncationDirection::Right,
            }))
            .map_err(|e| Error::file(path, e))?;
        if lower_case {
            let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
            steps.extend(inner.get_normalizer().cloned());
            inner.with_normalizer(Some(Normalizers::new(steps)));
        }
        Ok(Tokenizer { inner })
    }

    /// Tokens of every text, in order.
    pub(crate) fn encode<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str) -> Result<Vec<Encoded>> {
        texts.par_iter().map(|text| self.encode_one(text.as_ref(), prompt)).collect()
    }

    /// How many tokens at the head of a sequence belong to `prompt`: its own, and the special ones before them.
    pub(crate) fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let encoded = self.encode_one(prompt, "")?;
        Ok(encoded.sequence.ids.len() - usize::from(encoded.ends_special))
    }

    fn encode_one(&self, text: &str, prompt: &str) -> Result<Encoded> {
        let joined = if prompt.is_empty() { text } else { &format!("{prompt}{text}") };
        let encoding = sound(|| self.inner.encode(joined, true))
            .map_err(|e| Error::Input(format!("the tokenizer failed on a text of {} bytes: {e}", text.len())))?;
        if encoding.is_empty() {
            return Err(Error::Input("a text gives no tokens at all with this tokenizer, so it has no vector".into()));
        }
        Ok(Encoded {
            sequence: Sequence { ids: encoding.get_ids().to_vec(), types: encoding.get_type_ids().to_vec() },
            truncated: !encoding.get_overflowing().is_empty(),
            ends_special: encoding.get_special_tokens_mask().last() == Some(&1),
        })
    }
}

/// A tokenizer file is untrusted, and the library asserts some of what such a file may break.
fn sound<T>(f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("it contradicts itself".into()),
    }
}
