//! Errors, worded for the user.

use std::io;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run of shards cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{at}: {source}")]
    Io {
        /// The file.
        at: String,
        /// The cause.
        source: io::Error,
    },
    /// An object store refused a request.
    #[error("{at}: {why}")]
    Store {
        /// The object.
        at: String,
        /// The cause.
        why: String,
    },
    /// A file of the run cannot be understood.
    #[error("{at}: {why}; if it is damaged, begin again with another output folder")]
    Damaged {
        /// The file.
        at: String,
        /// The cause.
        why: String,
    },
    /// The run was begun with other settings.
    #[error(
        "{at} was begun with other settings: {}; use the same settings, or another output folder",
        differences.join("; ")
    )]
    Differs {
        /// The output folder.
        at: String,
        /// What differs, each as `name: there A, here B`.
        differences: Vec<String>,
    },
    /// An input cannot be divided into shards.
    #[error("{0}")]
    Input(String),
}

impl Error {
    /// For `map_err`: an I/O error of a file.
    pub fn io(at: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let at = at.into();
        move |source| Error::Io { at, source }
    }
}
