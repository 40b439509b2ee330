//! Errors of the index. Each message says what failed, on which file, and what to do next.

use std::path::PathBuf;

/// The result of most functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an index could not be opened, written or searched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database's file is missing, in use, foreign or damaged.
    #[error("{path}: {why}", path = path.display())]
    Database {
        /// The database's file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// SQLite refused a statement.
    #[error("the index's database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A file or folder could not be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The index holds embeddings of another model.
    #[error("{0}")]
    Model(String),
    /// An option, a query or a filter that cannot be right.
    #[error("{0}")]
    Input(String),
    /// A segment of codes does not have the content that its name promises.
    #[error("{path}: {why}", path = path.display())]
    Segment {
        /// The segment's file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A model failed.
    #[error(transparent)]
    Engine(#[from] sconce_engine::Error),
    /// The caller cancelled.
    #[error("cancelled; what was committed stays, and the next run goes on from there")]
    Cancelled,
}

impl Error {
    /// An error of the file system on `path`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}
