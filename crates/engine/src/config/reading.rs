//! How texts go into a model.

use crate::error::Result;
use sconce_formats::optional_json;
use sconce_text::TokenizerOptions;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How texts go in, as the model's files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The folder with the encoder's configuration, weights and tokenizer, or the GGUF file that holds all of them.
    pub(crate) root: PathBuf,
    /// The longest sequence, special tokens included, as far as the files around the encoder know.
    pub(crate) max_tokens: Option<usize>,
    /// What texts go through besides.
    pub(crate) manner: TokenizerOptions,
}

/// How texts go into a plain transformers model.
pub(crate) fn plain_reading(dir: &Path) -> Result<Reading> {
    let max_tokens = model_max_length(&dir.join("tokenizer_config.json"))?;
    Ok(Reading { root: dir.to_path_buf(), max_tokens, manner: TokenizerOptions::default() })
}

/// The tokenizer's own limit. Models without one write a number beyond any length (1e30).
fn model_max_length(path: &Path) -> Result<Option<usize>> {
    let config: Option<Value> = optional_json(path)?;
    let length = config.as_ref().and_then(|c| c.get("model_max_length")).and_then(Value::as_f64);
    Ok(length.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize))
}
