//! Writing what became of files into the database.

use std::path::Path;

use super::batch::{Done, Slot};
use super::classify::Work;
use super::prepare::{Hash, Prepared, ReadFile, Retry};
use crate::error::Result;
use crate::models::EmbeddingKind;
use crate::store::{Batch, FileState, NewChunk, NewFile, Vector, full_text_title};

/// What a call of [`FileWriter::write`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Indexed {
        chunks: u64,
        notes: Vec<String>,
    },
    Unchanged,
    Renamed,
    Failed(String),
    Skipped(String),
    /// A part of a file: the file itself comes later.
    Partial,
}

/// Writes files.
pub(super) struct FileWriter<'a> {
    pub(super) settings: &'a str,
    pub(super) kind: EmbeddingKind,
}

impl FileWriter<'_> {
    /// Writes into a transaction. Returns the file, unless it is only a part of one.
    pub(super) fn write(&self, batch: &Batch<'_>, done: Done) -> Result<(Option<Work>, Outcome)> {
        let prepared = match done {
            Done::Pending(embeddings) => {
                for (hash, embedding) in &embeddings {
                    batch.add_pending(hash, embedding)?;
                }
                return Ok((None, Outcome::Partial));
            }
            Done::File(file, slots) => return self.write_file(batch, *file, slots),
            Done::Other(prepared) => *prepared,
        };
        let (work, outcome) = match prepared {
            Prepared::Read(file) => return self.write_file(batch, *file, Vec::new()),
            Prepared::Touched(work) => {
                match &work.old {
                    Some(old) if Path::new(&old.root) != Path::new(&work.root) => {
                        batch.rename_file(old.id, &self.row(&work, None, FileState::Done))?;
                    }
                    _ => batch.touch_file(&work.path, work.found.size, work.found.modified_ns)?,
                }
                (work, Outcome::Unchanged)
            }
            Prepared::Renamed(work, old) => {
                batch.rename_file(old.id, &self.row(&work, None, FileState::Done))?;
                (work, Outcome::Renamed)
            }
            Prepared::Failed(work, reason, retry) => {
                self.write_none(batch, &work, (FileState::Failed(&reason), retry))?;
                (work, Outcome::Failed(reason))
            }
            Prepared::Skipped(work, reason) => {
                self.write_none(batch, &work, (FileState::Skipped(&reason), Retry::Changed))?;
                (work, Outcome::Skipped(reason))
            }
        };
        Ok((Some(work), outcome))
    }

    fn row<'w>(&'w self, work: &'w Work, hash: Option<&'w Hash>, state: FileState<'w>) -> NewFile<'w> {
        NewFile {
            path: &work.path,
            relative: &work.relative,
            root: Some(&work.root),
            size: work.found.size,
            modified_ns: Some(work.found.modified_ns),
            hash: hash.map(|hash| &hash[..]),
            settings: self.settings,
            state,
        }
    }

    /// Records why a file has no documents, and removes those that it had.
    fn write_none(&self, batch: &Batch<'_>, work: &Work, (state, retry): (FileState<'_>, Retry)) -> Result<()> {
        let row = self.row(work, None, state);
        // No run has these settings, so each takes the file for a changed one.
        let file = batch.put_file(&match retry {
            Retry::Changed => row,
            Retry::Always => NewFile { settings: "", ..row },
        })?;
        for document in batch.documents(file)? {
            batch.remove_document(document)?;
        }
        Ok(())
    }

    /// Replaces the documents of a file, in one transaction.
    fn write_file(&self, batch: &Batch<'_>, file: ReadFile, slots: Vec<Slot>) -> Result<(Option<Work>, Outcome)> {
        let id = batch.put_file(&self.row(&file.work, file.hash.as_ref(), FileState::Done))?;
        // The new chunks may take embeddings from the old ones, which therefore go last.
        let old = batch.documents(id)?;
        let mut slots = slots.iter();
        let mut chunks = 0;
        for chunked in &file.documents {
            let document = batch.add_document(id, &chunked.document)?;
            let title = full_text_title(chunked.document.title.as_deref(), &file.work.relative);
            for (ordinal, (chunk, hash)) in chunked.chunks.iter().enumerate() {
                let vector = match slots.next() {
                    Some(Slot::New(embedding)) => Vector::New(embedding),
                    Some(Slot::Same(other)) => Vector::Same(*other),
                    Some(Slot::Pending | Slot::Missing) | None => Vector::Pending,
                };
                let text = chunked.document.text.get(chunk.range.clone()).unwrap_or_default();
                let new = NewChunk { chunk, hash, vector };
                batch.add_chunk((document, ordinal), (title, text), &new, self.kind)?;
                chunks += 1;
            }
        }
        for document in old {
            batch.remove_document(document)?;
        }
        Ok((Some(file.work), Outcome::Indexed { chunks, notes: file.notes }))
    }
}
