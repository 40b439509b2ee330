//! Tokenization settings of a model.

use crate::error::Result;
use sconce_formats::optional_json;
use sconce_text::TokenizerOptions;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Tokenization settings from the model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputSpec {
    /// The folder with the encoder's configuration, weights and tokenizer, or the GGUF file.
    pub(crate) root: PathBuf,
    /// The longest sequence, special tokens included, if a file other than the encoder's limits it.
    pub(crate) max_tokens: Option<usize>,
    /// Other preprocessing of texts.
    pub(crate) tokenizer_options: TokenizerOptions,
}

/// The tokenization settings of a plain transformers model.
pub(crate) fn plain_input_spec(dir: &Path) -> Result<InputSpec> {
    let max_tokens = model_max_length(&dir.join("tokenizer_config.json"))?;
    Ok(InputSpec { root: dir.to_path_buf(), max_tokens, tokenizer_options: TokenizerOptions::default() })
}

/// The tokenizer's own limit. Models without one have a huge number (1e30).
fn model_max_length(path: &Path) -> Result<Option<usize>> {
    let config: Option<Value> = optional_json(path)?;
    let length = config.as_ref().and_then(|c| c.get("model_max_length")).and_then(Value::as_f64);
    Ok(length.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize))
}
