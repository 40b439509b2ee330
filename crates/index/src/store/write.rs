//! Writing: one writer at a time, in transactions.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::embeddings::{StoredEmbedding, sparse_values};
use super::full_text::full_text_form;
use super::metadata::{enum_json, to_json};
use super::{Reader, schema};
use crate::document::{Chunk, Document, Metadata};
use crate::error::{Error, Result};
use crate::models::{EmbeddingKind, ModelIdentity};

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

    /// Removes everything from the index, its model too.
    pub(crate) fn clear(&mut self) -> Result<()> {
        let batch = self.begin()?;
        batch.transaction.execute_batch(schema::CLEAR)?;
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
    transaction: Transaction<'a>,
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

/// A chunk with its embedding.
#[derive(Debug)]
pub(crate) struct NewChunk<'a> {
    pub(crate) chunk: &'a Chunk,
    /// Of everything that the embedding depends on.
    pub(crate) hash: &'a [u8],
    pub(crate) vector: Vector<'a>,
}

/// Where the embedding of a chunk comes from.
#[derive(Debug)]
pub(crate) enum Vector<'a> {
    /// The model computed it just now.
    New(&'a StoredEmbedding),
    /// An earlier batch of this file stored it among the pending ones.
    Pending,
    /// Another chunk, which still exists, has the same text.
    Same(i64),
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

    /// A file has another path. Its chunks get other ids, because codes have the path as metadata.
    pub(crate) fn rename_file(&self, id: i64, file: &NewFile<'_>) -> Result<()> {
        // An earlier run may have recorded a failure under the new path.
        self.remove_file(file.path)?;
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
        self.transaction.prepare_cached("DELETE FROM pending WHERE path = ?1")?.execute([path])?;
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
    fn remember_deleted(&self, document: i64) -> Result<()> {
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

    /// Adds a document without chunks to a file.
    pub(crate) fn add_document(&self, file: i64, document: &Document) -> Result<i64> {
        let sql = "INSERT INTO documents (file, row, title, kind, unit, metadata, bytes, text, layout)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let row = document.row.and_then(|row| i64::try_from(row).ok());
        let values = params![
            file,
            row,
            document.title,
            enum_json(&document.kind),
            enum_json(&document.layout.unit),
            to_json(&document.metadata),
            document.text.len() as i64,
            document.text,
            enum_json(&document.layout),
        ];
        Ok(self.transaction.prepare_cached(sql)?.insert(values)?)
    }

    /// Adds a chunk to a document. `title` stands for the document in the full text.
    pub(crate) fn add_chunk(
        &self,
        (document, ordinal): (i64, usize),
        (title, text): (&str, &str),
        new: &NewChunk<'_>,
        kind: EmbeddingKind,
    ) -> Result<i64> {
        let chunk = new.chunk;
        let sql = "INSERT INTO chunks (document, ordinal, start, stop, place, heading, hash, tokens)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let (start, stop) = (chunk.range.start as i64, chunk.range.end as i64);
        let values = params![document, ordinal as i64, start, stop, chunk.place, chunk.heading, new.hash, chunk.tokens];
        let id = self.transaction.prepare_cached(sql)?.insert(values)?;
        self.add_full_text(id, (title, chunk.heading.as_deref(), text))?;
        match new.vector {
            Vector::New(embedding) => self.add_vector(id, kind, embedding)?,
            Vector::Pending => {
                let sql = "SELECT main, mean FROM pending WHERE hash = ?1";
                let embedding = self
                    .transaction
                    .prepare_cached(sql)?
                    .query_row([new.hash], |row| Ok(StoredEmbedding { main: row.get(0)?, mean: row.get(1)? }))?;
                self.add_vector(id, kind, &embedding)?;
            }
            Vector::Same(other) => {
                let embedding = self.reader().embedding(other, kind)?;
                let why = || Error::Input(format!("chunk {other} has no embedding; rebuild the index (--rebuild)"));
                self.add_vector(id, kind, &embedding.ok_or_else(why)?)?;
            }
        }
        Ok(id)
    }

    fn add_full_text(&self, id: i64, (title, heading, text): (&str, Option<&str>, &str)) -> Result<()> {
        let sql = "INSERT INTO full_text (rowid, title, heading, text) VALUES (?1, ?2, ?3, ?4)";
        let heading = heading.map(full_text_form);
        let values = params![id, full_text_form(title), heading, full_text_form(text)];
        self.transaction.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn add_vector(&self, id: i64, kind: EmbeddingKind, embedding: &StoredEmbedding) -> Result<()> {
        let insert = |sql: &str, bytes: &[u8]| self.transaction.prepare_cached(sql)?.execute((id, bytes));
        let dense = "INSERT INTO dense (chunk, vector) VALUES (?1, ?2)";
        match kind {
            EmbeddingKind::Dense => insert(dense, &embedding.main)?,
            EmbeddingKind::MultiVector => {
                insert(dense, embedding.mean.as_deref().unwrap_or_default())?;
                insert("INSERT INTO multi (chunk, vectors) VALUES (?1, ?2)", &embedding.main)?
            }
            EmbeddingKind::Sparse => {
                let sql = "INSERT OR IGNORE INTO sparse_terms (term, chunk, weight) VALUES (?1, ?2, ?3)";
                let mut add = self.transaction.prepare_cached(sql)?;
                for (term, weight) in sparse_values(&embedding.main) {
                    add.execute((term, id, weight))?;
                }
                insert("INSERT INTO sparse (chunk, vector) VALUES (?1, ?2)", &embedding.main)?
            }
        };
        Ok(())
    }

    /// Keeps the embedding of a chunk whose file is not complete yet.
    pub(crate) fn add_pending(&self, path: &str, hash: &[u8], embedding: &StoredEmbedding) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO pending (hash, path, main, mean) VALUES (?1, ?2, ?3, ?4)";
        self.transaction.prepare_cached(sql)?.execute((hash, path, &embedding.main, &embedding.mean))?;
        Ok(())
    }

    /// Removes pending embeddings: those of a file, or all of them.
    pub(crate) fn remove_pending(&self, path: Option<&str>) -> Result<()> {
        match path {
            Some(path) => self.transaction.prepare_cached("DELETE FROM pending WHERE path = ?1")?.execute([path])?,
            None => self.transaction.execute("DELETE FROM pending", [])?,
        };
        Ok(())
    }

    /// Gives the chunks of a document other ids: their metadata have changed, and files of codes
    /// must not be changed. The embeddings move along.
    fn reissue(&self, document: i64) -> Result<()> {
        self.remember_deleted(document)?;
        let chunks = self.reader().chunk_rows(document)?;
        let title = self.reader().full_text_title(document)?;
        let tables = [
            "UPDATE dense SET chunk = ?2 WHERE chunk = ?1",
            "UPDATE sparse SET chunk = ?2 WHERE chunk = ?1",
            "UPDATE multi SET chunk = ?2 WHERE chunk = ?1",
        ];
        for row in chunks {
            let old = row.id;
            let text = self.reader().slice(document, row.chunk.range.clone())?;
            let sparse = match self.reader().embedding(old, EmbeddingKind::Sparse)? {
                Some(embedding) => embedding.main,
                None => Vec::new(),
            };
            self.transaction.prepare_cached("DELETE FROM full_text WHERE rowid = ?1")?.execute([old])?;
            self.transaction.prepare_cached("DELETE FROM chunks WHERE id = ?1")?.execute([old])?;
            let sql = "INSERT INTO chunks (document, ordinal, start, stop, place, heading, hash, tokens)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
            let (start, stop) = (row.chunk.range.start as i64, row.chunk.range.end as i64);
            let chunk = &row.chunk;
            let values =
                params![document, row.ordinal, start, stop, chunk.place, chunk.heading, row.hash, chunk.tokens];
            let new = self.transaction.prepare_cached(sql)?.insert(values)?;
            for table in tables {
                self.transaction.prepare_cached(table)?.execute((old, new))?;
            }
            let sql = "UPDATE sparse_terms SET chunk = ?3 WHERE term = ?1 AND chunk = ?2";
            for (term, _) in sparse_values(&sparse) {
                self.transaction.prepare_cached(sql)?.execute((term, old, new))?;
            }
            self.add_full_text(new, (&title, chunk.heading.as_deref(), &text))?;
        }
        Ok(())
    }
}
