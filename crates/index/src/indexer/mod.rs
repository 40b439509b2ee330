//! Indexing: from files to chunks and embeddings in the store.

mod add;
mod batch;
mod classify;
mod codes;
mod files;
mod pipeline;
mod prepare;
mod progress;
mod put;
mod queue;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use crate::chunk::ChunkOptions;
use crate::models::Embedder;
use crate::read::Parser;
use crate::walk::WalkOptions;

pub(crate) use add::add;
pub use progress::{Phase, Progress};
pub(crate) use put::put;
pub(crate) use run::update;

/// What a run of indexing covers.
#[derive(Debug, Clone)]
pub struct Update {
    /// Folders and files.
    pub roots: Vec<PathBuf>,
    /// Which files below the roots.
    pub walk: WalkOptions,
    /// How texts are chunked.
    pub chunk: ChunkOptions,
    /// Remove files below the roots that are not there any more.
    pub prune: bool,
    /// Discard everything that is in the index, and its model, first.
    pub rebuild: bool,
}

impl Update {
    /// A run over `roots` with the defaults, which removes files that are not there any more.
    pub fn new(roots: Vec<PathBuf>) -> Update {
        Update { roots, walk: WalkOptions::default(), chunk: ChunkOptions::default(), prune: true, rebuild: false }
    }
}

/// What a run of indexing works with.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The model.
    pub embedder: &'a dyn Embedder,
    /// Reads the files.
    pub parser: &'a Parser,
}

/// What a run of indexing did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Files read and embedded, new ones and changed ones.
    pub indexed: u64,
    /// Files that are as they were.
    pub unchanged: u64,
    /// Files that have another path; nothing was embedded.
    pub renamed: u64,
    /// Files that are not there any more.
    pub removed: u64,
    /// Files that could not be read, with the reasons.
    pub failed: Vec<(PathBuf, String)>,
    /// Files that are left out on purpose (secrets, binary files, files that are too large), with
    /// the reasons.
    pub skipped: Vec<(PathBuf, String)>,
    /// What was left out or replaced in files that were read, such as bytes that are not UTF-8.
    pub notes: Vec<(PathBuf, String)>,
    /// Chunks written.
    pub chunks: u64,
    /// Chunks that were embedded; the others are as they were.
    pub embedded: u64,
    /// The time of the run.
    pub elapsed: Duration,
}
