//! Reading: status, files, documents and the embeddings that indexing can use again.

use std::collections::HashMap;
use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, Row};

use super::embeddings::StoredEmbedding;
use super::metadata::from_json;
use super::schema::beside;
use crate::chunk::ChunkOptions;
use crate::error::{Error, Result};
use crate::index::{DocumentInfo, Failure, Page, Status};
use crate::models::{EmbeddingKind, ModelIdentity};

/// Reads one snapshot of the database.
pub(crate) struct Reader<'a> {
    pub(super) connection: &'a Connection,
}

/// What the index knows of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) id: i64,
    pub(crate) path: String,
    /// The root of the walk that found it.
    pub(crate) root: String,
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
    pub(crate) hash: Option<Vec<u8>>,
    pub(crate) settings: String,
    /// Whether it can be found; otherwise it failed or was skipped.
    pub(crate) is_done: bool,
}

/// The columns of [`document_info`].
const DOCUMENT: &str = "SELECT d.id, f.path, d.row, d.title, d.kind, d.metadata, d.bytes,
    (SELECT count(*) FROM chunks c WHERE c.document = d.id), f.modified_ns
    FROM documents d JOIN files f ON f.id = d.file";

fn document_info(row: &Row<'_>) -> rusqlite::Result<DocumentInfo> {
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(DocumentInfo {
        id: row.get(0)?,
        path: row.get(1)?,
        row: row.get::<_, Option<i64>>(2)?.map(unsigned),
        title: row.get(3)?,
        kind: serde_json::from_str(&row.get::<_, String>(4)?).unwrap_or(crate::document::Kind::Text),
        metadata: from_json(&row.get::<_, String>(5)?),
        bytes: unsigned(row.get(6)?),
        chunks: unsigned(row.get(7)?),
        modified_ns: row.get(8)?,
    })
}

impl<'a> Reader<'a> {
    pub(super) fn new(connection: &'a Connection) -> Reader<'a> {
        Reader { connection }
    }

    fn count(&self, sql: &str) -> Result<u64> {
        let count: i64 = self.connection.query_row(sql, [], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// A value that belongs to the whole index.
    pub(crate) fn meta(&self, key: &str) -> Result<Option<String>> {
        let mut find = self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
        Ok(find.query_row([key], |row| row.get(0)).optional()?)
    }

    /// The model of the embeddings. One that cannot be read is an error: as `None`, another model
    /// would take its place.
    pub(crate) fn model(&self) -> Result<Option<ModelIdentity>> {
        let Some(json) = self.meta("model")? else { return Ok(None) };
        serde_json::from_str(&json).map(Some).map_err(|e| Error::Database {
            path: self.path(),
            why: format!("names a model that cannot be read ({e}); remove the index, and index the files again"),
        })
    }

    /// How the last run cut texts into chunks.
    pub(crate) fn chunk_options(&self) -> Result<Option<ChunkOptions>> {
        Ok(self.meta("chunk")?.and_then(|json| serde_json::from_str(&json).ok()))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.connection.path().unwrap_or_default())
    }

    /// What the index has. [`Status::damaged`] stays empty.
    pub(crate) fn status(&self) -> Result<Status> {
        let path = self.path();
        let codes = std::fs::read_dir(beside(&path, ".codes")).into_iter().flatten().flatten();
        let codes: u64 = codes.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum();
        let size = |path: PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let coded = "SELECT (SELECT coalesce(sum(rows), 0) FROM segments) - (SELECT count(*) FROM deleted)";
        Ok(Status {
            model: self.model()?,
            roots: self.roots()?,
            files: self.count("SELECT count(*) FROM files WHERE state = 'done'")?,
            failed: self.count("SELECT count(*) FROM files WHERE state = 'failed'")?,
            documents: self.count("SELECT count(*) FROM documents")?,
            chunks: self.count("SELECT count(*) FROM chunks")?,
            coded: self.count(coded)?,
            bytes: size(path.clone()) + size(beside(&path, "-wal")) + codes,
            updated: self.meta("updated")?.and_then(|text| text.parse().ok()),
            damaged: Vec::new(),
        })
    }

    fn roots(&self) -> Result<Vec<PathBuf>> {
        let mut find = self.connection.prepare("SELECT DISTINCT root FROM files WHERE root NOT NULL ORDER BY root")?;
        let roots = find.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
        Ok(roots.into_iter().map(PathBuf::from).collect())
    }

    /// Files that could not be read.
    pub(crate) fn failures(&self, limit: usize) -> Result<Vec<Failure>> {
        let sql = "SELECT path, coalesce(reason, '') FROM files WHERE state = 'failed' ORDER BY path LIMIT ?1";
        let mut find = self.connection.prepare(sql)?;
        let failures = find.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
            Ok(Failure { path: row.get(0)?, reason: row.get(1)? })
        })?;
        Ok(failures.collect::<rusqlite::Result<_>>()?)
    }

    /// The files that came from walks, by path.
    pub(crate) fn files(&self) -> Result<HashMap<String, FileRecord>> {
        let sql = "SELECT id, path, size, modified_ns, hash, settings, state, root FROM files WHERE root NOT NULL";
        let mut find = self.connection.prepare(sql)?;
        let mut rows = find.query([])?;
        let mut files = HashMap::new();
        while let Some(row) = rows.next()? {
            let record = FileRecord {
                id: row.get(0)?,
                path: row.get(1)?,
                size: u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0),
                modified_ns: row.get::<_, Option<i64>>(3)?.unwrap_or(0),
                hash: row.get(4)?,
                settings: row.get(5)?,
                is_done: row.get::<_, String>(6)? == "done",
                root: row.get(7)?,
            };
            files.insert(record.path.clone(), record);
        }
        Ok(files)
    }

    /// A part of the list of documents.
    pub(crate) fn documents(&self, page: &Page) -> Result<Vec<DocumentInfo>> {
        let sql =
            format!("{DOCUMENT} WHERE d.id > ?1 AND (?2 IS NULL OR instr(f.path, ?2) = 1) ORDER BY d.id LIMIT ?3");
        let mut find = self.connection.prepare_cached(&sql)?;
        let limit = page.limit.min(1_000) as i64;
        let documents = find.query_map((page.after.unwrap_or(0), &page.prefix, limit), document_info)?;
        Ok(documents.collect::<rusqlite::Result<_>>()?)
    }

    /// A document by its id.
    pub(crate) fn document(&self, id: i64) -> Result<Option<DocumentInfo>> {
        let mut find = self.connection.prepare_cached(&format!("{DOCUMENT} WHERE d.id = ?1"))?;
        Ok(find.query_row([id], document_info).optional()?)
    }

    /// The first document of a path or key.
    pub(crate) fn document_by_key(&self, key: &str) -> Result<Option<DocumentInfo>> {
        let sql = format!("{DOCUMENT} WHERE f.path = ?1 ORDER BY d.id LIMIT 1");
        let mut find = self.connection.prepare_cached(&sql)?;
        Ok(find.query_row([key], document_info).optional()?)
    }

    /// The text of a document.
    pub(crate) fn text(&self, document: i64) -> Result<Option<String>> {
        let mut find = self.connection.prepare_cached("SELECT text FROM documents WHERE id = ?1")?;
        Ok(find.query_row([document], |row| row.get(0)).optional()?)
    }

    /// The embedding of a chunk.
    pub(crate) fn embedding(&self, chunk: i64, kind: EmbeddingKind) -> Result<Option<StoredEmbedding>> {
        let sql = match kind {
            EmbeddingKind::Dense => "SELECT vector, NULL FROM dense WHERE chunk = ?1",
            EmbeddingKind::Sparse => "SELECT vector, NULL FROM sparse WHERE chunk = ?1",
            EmbeddingKind::MultiVector => {
                "SELECT m.vectors, d.vector FROM multi m JOIN dense d ON d.chunk = m.chunk WHERE m.chunk = ?1"
            }
        };
        let read = |row: &Row<'_>| Ok(StoredEmbedding { main: row.get(0)?, mean: row.get(1)? });
        Ok(self.connection.prepare_cached(sql)?.query_row([chunk], read).optional()?)
    }

    /// The chunks of a file by the hashes of what was embedded.
    pub(crate) fn chunk_hashes(&self, path: &str) -> Result<HashMap<Vec<u8>, i64>> {
        let sql =
            "SELECT c.hash, c.id FROM files f JOIN documents d ON d.file = f.id JOIN chunks c ON c.document = d.id
                   WHERE f.path = ?1";
        let mut find = self.connection.prepare_cached(sql)?;
        let hashes = find.query_map([path], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(hashes.collect::<rusqlite::Result<_>>()?)
    }

    /// Whether there are embeddings of files that are not complete.
    pub(crate) fn has_pending(&self) -> Result<bool> {
        Ok(self.connection.prepare_cached("SELECT 1 FROM pending LIMIT 1")?.exists([])?)
    }

    /// Whether the embedding of a chunk is among the pending ones.
    pub(crate) fn is_pending(&self, hash: &[u8]) -> Result<bool> {
        Ok(self.connection.prepare_cached("SELECT 1 FROM pending WHERE hash = ?1")?.exists([hash])?)
    }
}
