//! The database: one SQLite file, the source of truth.

mod embeddings;
mod excerpt;
mod full_text;
mod metadata;
mod passages;
mod read;
mod schema;
mod segments;
mod write;
mod write_chunks;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::index::OpenOptions;

pub(crate) use embeddings::{StoredEmbedding, dot_stored, f16_values, f32_values, mean, normalized};
pub(crate) use full_text::{is_ideographic, match_expression, terms, words};
pub(crate) use passages::{embedded_text, full_text_title};
pub(crate) use read::{FileRecord, Reader};
pub(crate) use schema::{beside, own_files};
pub(crate) use segments::{SegmentList, gaps};
pub(crate) use write::{Batch, FileState, NewFile, Writer};
pub(crate) use write_chunks::{NewChunk, Vector};

/// Readers that wait for the next search. More of them work at the same time if they must.
const MAX_IDLE: usize = 16;

/// Connections for reading, one for each search that runs.
pub(crate) struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// Opens the database, and creates it if the options say so.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Pool> {
        let creates = options.create && !options.read_only;
        if creates {
            // Also completes what a killed process has begun.
            schema::create(path)?;
        } else if !path.exists() {
            let why = "there is no index; run `sconce index` first, or name another file".into();
            return Err(Error::Database { path: path.to_owned(), why });
        }
        let connection = schema::reader(path)?;
        Ok(Pool { path: path.to_owned(), idle: Mutex::new(vec![connection]) })
    }

    /// Closes the connections that wait for the next search.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Calls `read` with a snapshot of the database: commits of a writer do not change it.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Reader<'_>) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => schema::reader(&self.path)?,
        };
        let result = {
            let transaction = connection.unchecked_transaction()?;
            read(&Reader::new(&transaction))
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        result
    }
}
