//! The prefix cache on disk: the keys and values of long prefixes, so that a long system prompt is
//! computed once per machine, not once per process.
//!
//! A prefix is stored in chunks of one length, a file each. The name of a file is a hash of
//! everything that its content depends on: the model's files, the formats, the kernels, and all
//! tokens up to the end of the chunk. So prompts with a common beginning share its files, a file
//! never has to be replaced, and no file can be used for another text.

mod folder;
mod key;
mod writer;

pub(crate) use folder::Folder;
pub(crate) use key::{Key, hash_model};
pub(crate) use writer::Writer;

use derive_setters::Setters;
use std::path::PathBuf;

/// Where prefixes of prompts are stored, and how much of the disk they may take.
#[derive(Clone, Debug, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct PromptCacheOptions {
    /// The folder, which is made if it is missing. Any number of processes may use it at once.
    #[setters(skip)]
    pub folder: PathBuf,
    /// The most bytes of all files. The least recently used ones are removed.
    pub max_bytes: u64,
}

impl PromptCacheOptions {
    /// The default of [`PromptCacheOptions::max_bytes`]: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;

    /// A prefix cache in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> PromptCacheOptions {
        PromptCacheOptions { folder: folder.into(), max_bytes: PromptCacheOptions::DEFAULT_BYTES }
    }
}
