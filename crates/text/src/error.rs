//! Errors of tokenization, detokenization and chat templates.

use crate::chat::TemplateError;
use sconce_formats::FileError;

/// Why text could not become tokens, or tokens text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tokenizer file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The chat template did not render.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// One of several texts cannot be tokenized.
    #[error("text {}: {why}", text + 1)]
    Text {
        /// Which text, counted from 0.
        text: usize,
        /// Why not.
        why: String,
    },
    /// One of several texts is longer than the model can take.
    #[error("text {}: {why}", text + 1)]
    TooLong {
        /// Which text, counted from 0.
        text: usize,
        /// How much longer.
        why: String,
    },
    /// The caller's input cannot be used.
    #[error("{0}")]
    Input(String),
}

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn file(path: &std::path::Path, what: impl ToString) -> Error {
        FileError::new(path, what).into()
    }
}
