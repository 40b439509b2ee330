//! Progress of a run of indexing.

use std::path::PathBuf;
use std::time::Duration;

/// What a run of indexing does at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Looks for files.
    #[default]
    Walking,
    /// Reads, embeds and writes.
    Embedding,
    /// Writes the files of codes.
    Finishing,
}

/// How far a run of indexing is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// What the run does.
    pub phase: Phase,
    /// Files found so far.
    pub found: u64,
    /// Files that are done: written, unchanged, renamed, failed or skipped.
    pub files: u64,
    /// Files that failed or were skipped.
    pub problems: u64,
    /// The bytes of new and changed files.
    pub bytes: u64,
    /// The part of `bytes` whose files are done.
    pub bytes_done: u64,
    /// Chunks embedded so far.
    pub chunks: u64,
    /// The file that was written last.
    pub current: Option<PathBuf>,
    /// The time since the beginning.
    pub elapsed: Duration,
    /// The time left, estimated from the bytes done; `None`: too early to say.
    pub left: Option<Duration>,
}

impl Progress {
    /// Chunks embedded per second since the beginning.
    pub fn rate(&self) -> f64 {
        self.chunks as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }
}
