//! Why a file could not be read.

use serde::{Deserialize, Serialize};

use super::Format;

/// The longest message of a parser that is kept, in characters.
const MAX_MESSAGE: usize = 500;

/// Why a file could not be read. The message continues the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ReadError {
    /// The system's error.
    #[error("cannot be read: {0}")]
    Io(String),
    /// A folder, link, FIFO, socket or device.
    #[error("is not a regular file")]
    NotAFile,
    /// The content begins as a private key does.
    #[error("is skipped: it holds a private key")]
    Secret,
    /// The content is not text.
    #[error("is skipped: its content is not text")]
    Binary,
    /// The file exceeds the limit.
    #[error("is skipped: it has {size} bytes, and the limit is {limit}")]
    TooLarge {
        /// The file's size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The content is not of its format.
    #[error("cannot be parsed: {0}")]
    Malformed(String),
    /// The parser took too long and was stopped.
    #[error("was given up: its parser took longer than the limit of {0} s")]
    Time(u64),
    /// The parser took too much memory and was stopped.
    #[error("was given up: its parser needed more than the limit of {} MiB of memory", .0 >> 20)]
    Memory(u64),
    /// The parser ended by itself.
    #[error("was given up: its parser crashed ({0})")]
    Crashed(String),
    /// The child process could not be started or understood.
    #[error("cannot be parsed: the parser process does not work: {0}")]
    Process(String),
    /// The format is read in a child process only.
    #[error("cannot be read in this process ({0:?}); give it to a parser")]
    NeedsParser(Format),
}

impl ReadError {
    /// Whether the file is one that is skipped on purpose, rather than one that failed.
    pub fn is_skip(&self) -> bool {
        matches!(self, Self::NotAFile | Self::Secret | Self::Binary | Self::TooLarge { .. })
    }

    /// The error with a message that may be stored and shown: parsers quote what is in the file.
    pub(super) fn cleaned(self) -> Self {
        match self {
            Self::Io(why) => Self::Io(clean(&why)),
            Self::Malformed(why) => Self::Malformed(clean(&why)),
            Self::Crashed(why) => Self::Crashed(clean(&why)),
            Self::Process(why) => Self::Process(clean(&why)),
            other => other,
        }
    }
}

/// A message of a parser on one line, without control characters, and not too long.
pub(super) fn clean(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}
