//! The error type of this crate: a file that cannot be used.

use std::path::{Path, PathBuf};

/// A file of a model, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct FileError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it; completes a sentence that begins with the path.
    pub what: String,
}

impl FileError {
    /// An error about `path`.
    pub fn new(path: &Path, what: impl ToString) -> FileError {
        FileError { path: path.to_path_buf(), what: what.to_string() }
    }
}

/// Shorthand used throughout the crate.
pub type Result<T, E = FileError> = std::result::Result<T, E>;
