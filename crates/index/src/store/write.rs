//! Writing: one writer at a time, in transactions.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::embeddings::sparse_values;
use super::metadata::{enum_json, to_json};
use super::{Reader, schema};
use crate::chunk::ChunkOptions;
use crate::document::Metadata;
use crate::error::Result;
use crate::models::ModelIdentity;

/// A longer log is begun anew, in bytes.
const MAX_LOG: u64 = 256 << 20;

/// The one writer of a database. Dropping it releases the lock.
pub(crate) struct Writer {
    connection: Connection,
    path: PathBuf,
    _lock: File,
}

impl Writer {
    /// Takes the lock and opens the database. Fails if another process, or another thread, writes.
    pub(crate) fn open(path: &Path) -> Result<Writer> {
        let lock = schema::lock(path)?;
        Ok(Writer { connection: schema::writer(path)?, path: path.to_owned(), _lock: lock })
    }

    /// Begins a transaction.
    pub(crate) fn begin(&mut self) -> Result<Batch<'_>> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        Ok(Batch { transaction, covered: Cell::new(None), is_generation_new: Cell::new(false) })
    }

    /// Begins the log anew if it has become long. SQLite does so by itself only when no reader uses
    /// the log, and searches that follow each other without a pause never leave such a moment.
    pub(crate) fn bound_log(&self) -> Result<()> {
        if schema::beside(&self.path, "-wal").metadata().map_or(0, |found| found.len()) < MAX_LOG {
            return Ok(());
        }
        // Waits for readers of old snapshots, but not long: the next commit tries again.
        self.connection.busy_timeout(Duration::from_millis(200))?;
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.connection.busy_timeout(schema::BUSY)?;
        Ok(())
    }

    /// Reads what was committed.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.connection)
    }

    /// The database's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the files of codes.
    pub(crate) fn codes(&self) -> PathBuf {
        schema::beside(&self.path, ".codes")
    }

    /// Removes everything from the index, and gives it another model: also if the run is killed
    /// next, the index knows its model.
    pub(crate) fn clear(&mut self, model: &ModelIdentity) -> Result<()> {
        let batch = self.begin()?;
        batch.transaction.execute_batch(schema::CLEAR)?;
        batch.set_model(model)?;
        batch.is_generation_new.set(true);
        batch.commit()
    }

    /// Removes files and added documents by paths and keys. Returns how many there were.
    pub(crate) fn remove(&mut self, keys: &[&str]) -> Result<u64> {
        let batch = self.begin()?;
        let mut removed = 0;
        for key in keys {
            removed += u64::from(batch.remove_file(key)?);
        }
        batch.commit()?;
        Ok(removed)
    }

    /// Replaces the metadata of the documents of a file or key; `false`: there is none.
    pub(crate) fn set_metadata(&mut self, key: &str, metadata: &Metadata) -> Result<bool> {
        let batch = self.begin()?;
        let Some(file) = batch.file(key)? else { return Ok(false) };
        for document in batch.documents(file)? {
            let update = "UPDATE documents SET metadata = ?2 WHERE id = ?1";
            batch.transaction.prepare_cached(update)?.execute((document, to_json(metadata)))?;
            batch.reissue(document)?;
        }
        batch.commit()?;
        Ok(true)
    }
}

/// A transaction. Dropping it without [`Batch::commit`] undoes it.
pub(crate) struct Batch<'a> {
    pub(super) transaction: Transaction<'a>,
    /// The greatest chunk that a file of codes covers.
    covered: Cell<Option<i64>>,
    /// Whether the segments or the chunks deleted from them are others than before.
    is_generation_new: Cell<bool>,
}

/// A file, or the key of an added document.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    /// The absolute path, or the key.
    pub(crate) path: &'a str,
    /// The path below the root; for an added document, the key.
    pub(crate) relative: &'a str,
    /// The root of the walk; `None`: an added document.
    pub(crate) root: Option<&'a str>,
    pub(crate) size: u64,
    pub(crate) modified_ns: Option<i64>,
    pub(crate) hash: Option<&'a [u8]>,
    /// What the chunks depend on, beside the file.
    pub(crate) settings: &'a str,
    pub(crate) state: FileState<'a>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState<'a> {
    /// It can be found.
    Done,
    /// It could not be read.
    Failed(&'a str),
    /// It was left out on purpose.
    Skipped(&'a str),
}

impl<'a> FileState<'a> {
    fn columns(self) -> (&'static str, Option<&'a str>) {
        match self {
            FileState::Done => ("done", None),
            FileState::Failed(reason) => ("failed", Some(reason)),
            FileState::Skipped(reason) => ("skipped", Some(reason)),
        }
    }
}

impl Batch<'_> {
    /// Makes everything durable and visible.
    pub(crate) fn commit(self) -> Result<()> {
        if self.is_generation_new.get() {
            let sql = "INSERT INTO meta (key, value) VALUES ('generation', '1')
                       ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)";
            self.transaction.execute(sql, [])?;
        }
        self.transaction.commit()?;
        Ok(())
    }

    /// Reads what this transaction sees.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.transaction)
    }

    /// The segments have changed: readers must load them again.
    pub(super) fn new_generation(&self) {
        self.covered.set(None);
        self.is_generation_new.set(true);
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.transaction
    }

    /// Sets a value that belongs to the whole index.
    pub(crate) fn set_meta(&self, key: &str, value: &str) -> Result<()> {
        let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
        self.transaction.prepare_cached(sql)?.execute((key, value))?;
        Ok(())
    }

    /// Sets the model of the embeddings.
    pub(crate) fn set_model(&self, identity: &ModelIdentity) -> Result<()> {
        self.set_meta("model", &enum_json(identity))
    }

    /// Sets how texts are cut into chunks.
    pub(crate) fn set_chunk_options(&self, options: &ChunkOptions) -> Result<()> {
        self.set_meta("chunk", &enum_json(options))
    }

    /// Writes a file's row. Its documents stay.
    pub(crate) fn put_file(&self, file: &NewFile<'_>) -> Result<i64> {
        let (state, reason) = file.state.columns();
        let sql = "INSERT INTO files (path, relative, root, size, modified_ns, hash, settings, state, reason)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                   ON CONFLICT (path) DO UPDATE SET relative = ?2, root = ?3, size = ?4, modified_ns = ?5, hash = ?6,
                       settings = ?7, state = ?8, reason = ?9
                   RETURNING id";
        let size = i64::try_from(file.size).unwrap_or(i64::MAX);
        let values = params![
            file.path,
            file.relative,
            file.root,
            size,
            file.modified_ns,
            file.hash,
            file.settings,
            state,
            reason
        ];
        Ok(self.transaction.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
    }

    /// The file has the content that the index has, but another time of change.
    pub(crate) fn touch_file(&self, path: &str, size: u64, modified_ns: i64) -> Result<()> {
        let sql = "UPDATE files SET size = ?2, modified_ns = ?3 WHERE path = ?1";
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        self.transaction.prepare_cached(sql)?.execute((path, size, modified_ns))?;
        Ok(())
    }

    /// A file has another path or root. Its chunks get other ids, because codes have the path as
    /// metadata.
    pub(crate) fn rename_file(&self, id: i64, file: &NewFile<'_>) -> Result<()> {
        // An earlier run may have recorded a failure under the new path.
        if self.file(file.path)? != Some(id) {
            self.remove_file(file.path)?;
        }
        let sql = "UPDATE files SET path = ?2, relative = ?3, root = ?4, size = ?5, modified_ns = ?6 WHERE id = ?1";
        let size = i64::try_from(file.size).unwrap_or(i64::MAX);
        let values = params![id, file.path, file.relative, file.root, size, file.modified_ns];
        self.transaction.prepare_cached(sql)?.execute(values)?;
        for document in self.documents(id)? {
            self.reissue(document)?;
        }
        Ok(())
    }

    fn file(&self, path: &str) -> Result<Option<i64>> {
        let mut find = self.transaction.prepare_cached("SELECT id FROM files WHERE path = ?1")?;
        Ok(find.query_row([path], |row| row.get(0)).optional()?)
    }

    /// Removes a file with its documents. Returns whether there was one.
    pub(crate) fn remove_file(&self, path: &str) -> Result<bool> {
        let Some(file) = self.file(path)? else { return Ok(false) };
        for document in self.documents(file)? {
            self.remove_document(document)?;
        }
        self.transaction.prepare_cached("DELETE FROM files WHERE id = ?1")?.execute([file])?;
        Ok(true)
    }

    /// The documents of a file.
    pub(crate) fn documents(&self, file: i64) -> Result<Vec<i64>> {
        let mut find = self.transaction.prepare_cached("SELECT id FROM documents WHERE file = ?1 ORDER BY id")?;
        let ids = find.query_map([file], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        Ok(ids)
    }

    /// Removes a document with its chunks.
    pub(crate) fn remove_document(&self, document: i64) -> Result<()> {
        let execute = |sql: &str| self.transaction.prepare_cached(sql)?.execute([document]);
        self.remember_deleted(document)?;
        self.remove_sparse_terms(document)?;
        for table in ["dense", "sparse", "multi"] {
            execute(&format!("DELETE FROM {table} WHERE chunk IN (SELECT id FROM chunks WHERE document = ?1)"))?;
        }
        execute("DELETE FROM full_text WHERE rowid IN (SELECT id FROM chunks WHERE document = ?1)")?;
        execute("DELETE FROM chunks WHERE document = ?1")?;
        execute("DELETE FROM documents WHERE id = ?1")?;
        Ok(())
    }

    /// Remembers that files of codes have chunks of the document that are deleted.
    pub(super) fn remember_deleted(&self, document: i64) -> Result<()> {
        let covered = match self.covered.get() {
            Some(covered) => covered,
            None => {
                let sql = "SELECT max(last) FROM segments";
                let last: Option<i64> = self.transaction.query_row(sql, [], |row| row.get(0))?;
                self.covered.set(Some(last.unwrap_or(0)));
                last.unwrap_or(0)
            }
        };
        let sql = "INSERT OR IGNORE INTO deleted (chunk) SELECT id FROM chunks WHERE document = ?1 AND id <= ?2";
        if self.transaction.prepare_cached(sql)?.execute((document, covered))? > 0 {
            self.is_generation_new.set(true);
        }
        Ok(())
    }

    fn remove_sparse_terms(&self, document: i64) -> Result<()> {
        let sql = "SELECT chunk, vector FROM sparse WHERE chunk IN (SELECT id FROM chunks WHERE document = ?1)";
        let mut find = self.transaction.prepare_cached(sql)?;
        let mut remove = self.transaction.prepare_cached("DELETE FROM sparse_terms WHERE term = ?1 AND chunk = ?2")?;
        let mut rows = find.query([document])?;
        while let Some(row) = rows.next()? {
            let (chunk, vector): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
            for (term, _) in sparse_values(&vector) {
                remove.execute((term, chunk))?;
            }
        }
        Ok(())
    }
}
