//! One batch: its record, and its folder with the input and the results so far.

use super::journal::Counts;
use super::record::Record;
use crate::storage::records::{self, Durability};
use sconce_api::openai::batches::{Batch as Object, RequestCounts};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The record's file.
const RECORD: &str = "batch.json";

/// A batch.
pub(crate) struct Batch {
    dir: PathBuf,
    record: Mutex<Record>,
    cancelled: watch::Sender<bool>,
}

impl Batch {
    /// A batch whose folder is there, with the input but without a record.
    pub(super) fn create(dir: PathBuf, record: Record) -> io::Result<Batch> {
        records::write(&dir.join(RECORD), &record, Durability::Power)?;
        Ok(Batch::of(dir, record))
    }

    /// Reads a batch. Its requests so far are counted when it runs.
    pub(super) fn read(dir: PathBuf) -> io::Result<Batch> {
        let record: Record = records::read(&dir.join(RECORD))?;
        match dir.file_name().is_some_and(|name| *name == *record.id) {
            true => Ok(Batch::of(dir, record)),
            false => Err(io::Error::other("the folder has the record of another batch")),
        }
    }

    /// Whether a folder has a record. One without is of a creation or deletion that was interrupted.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(RECORD).exists()
    }

    fn of(dir: PathBuf, record: Record) -> Batch {
        let cancelled = watch::Sender::new(record.cancelling_at.is_some());
        Batch { dir, record: Mutex::new(record), cancelled }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self) -> Record {
        self.lock().clone()
    }

    /// Looks at the record, without a copy.
    pub(super) fn with<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.lock())
    }

    /// Whether it is as it will stay.
    pub(super) fn has_ended(&self) -> bool {
        self.with(|record| record.status.is_final())
    }

    /// As the API has it.
    pub(crate) fn object(&self) -> Object {
        self.lock().object()
    }

    /// Changes the record, on disk first. If that fails, it stays.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Record) -> T) -> io::Result<T> {
        let mut record = self.lock();
        let mut new = record.clone();
        let result = change(&mut new);
        records::write(&self.dir.join(RECORD), &new, Durability::Power)?;
        *record = new;
        Ok(result)
    }

    /// Counts requests. Only in memory: the results themselves are on disk.
    pub(super) fn count(&self, Counts { completed, failed }: Counts) {
        let mut record = self.lock();
        record.counts = RequestCounts { total: record.counts.total, completed, failed };
    }

    /// The input file: a link, so that the client may delete its file.
    pub(super) fn input(&self) -> PathBuf {
        input(&self.dir)
    }

    /// The results so far.
    pub(super) fn journal(&self) -> PathBuf {
        self.dir.join("results.jsonl")
    }

    /// Removes what an ended batch does not need any more.
    pub(super) fn clear(&self) {
        for path in [self.input(), self.journal()] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), "cannot remove a file of a batch: {e}");
                }
                _ => {}
            }
        }
    }

    /// Removes the batch. The record goes first: without it the rest is removed at the next start.
    pub(super) fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(RECORD))?;
        std::fs::remove_dir_all(&self.dir)
    }

    /// Tells the task of the batch to stop.
    pub(super) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Waits until a client cancels.
    pub(super) async fn cancelled(&self) {
        // `self` holds the sender, so the channel is open.
        let _ = self.cancelled.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}

/// The input file in the folder of a batch.
pub(super) fn input(dir: &Path) -> PathBuf {
    dir.join("input.jsonl")
}
