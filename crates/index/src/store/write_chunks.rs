//! Writing documents and their chunks: text, full text and embeddings.

use rusqlite::params;

use super::Batch;
use super::embeddings::{StoredEmbedding, sparse_values};
use super::full_text::full_text_form;
use super::metadata::{enum_json, to_json};
use crate::document::{Chunk, Document};
use crate::error::{Error, Result};
use crate::models::EmbeddingKind;

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
        Ok(self.connection().prepare_cached(sql)?.insert(values)?)
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
        let id = self.connection().prepare_cached(sql)?.insert(values)?;
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
        self.connection().prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn add_vector(&self, id: i64, kind: EmbeddingKind, embedding: &StoredEmbedding) -> Result<()> {
        let insert = |sql: &str, bytes: &[u8]| self.connection().prepare_cached(sql)?.execute((id, bytes));
        let dense = "INSERT INTO dense (chunk, vector) VALUES (?1, ?2)";
        match kind {
            EmbeddingKind::Dense => insert(dense, &embedding.main)?,
            EmbeddingKind::MultiVector => {
                insert(dense, embedding.mean.as_deref().unwrap_or_default())?;
                insert("INSERT INTO multi (chunk, vectors) VALUES (?1, ?2)", &embedding.main)?
            }
            EmbeddingKind::Sparse => {
                let sql = "INSERT OR IGNORE INTO sparse_terms (term, chunk, weight) VALUES (?1, ?2, ?3)";
                let mut add = self.connection().prepare_cached(sql)?;
                for (term, weight) in sparse_values(&embedding.main) {
                    add.execute((term, id, weight))?;
                }
                insert("INSERT INTO sparse (chunk, vector) VALUES (?1, ?2)", &embedding.main)?
            }
        };
        Ok(())
    }

    /// Keeps the embedding of a chunk whose file is not complete yet.
    pub(crate) fn add_pending(&self, hash: &[u8], embedding: &StoredEmbedding) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO pending (hash, main, mean) VALUES (?1, ?2, ?3)";
        self.connection().prepare_cached(sql)?.execute((hash, &embedding.main, &embedding.mean))?;
        Ok(())
    }

    /// Removes the embeddings of files that were not complete. Only at the end of a run: another file
    /// may have the same text.
    pub(crate) fn remove_pending(&self) -> Result<()> {
        self.connection().execute("DELETE FROM pending", [])?;
        Ok(())
    }

    /// Gives the chunks of a document other ids: their metadata have changed, and files of codes
    /// must not be changed. The embeddings move along.
    pub(super) fn reissue(&self, document: i64) -> Result<()> {
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
            self.connection().prepare_cached("DELETE FROM full_text WHERE rowid = ?1")?.execute([old])?;
            self.connection().prepare_cached("DELETE FROM chunks WHERE id = ?1")?.execute([old])?;
            let sql = "INSERT INTO chunks (document, ordinal, start, stop, place, heading, hash, tokens)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
            let (start, stop) = (row.chunk.range.start as i64, row.chunk.range.end as i64);
            let chunk = &row.chunk;
            let values =
                params![document, row.ordinal, start, stop, chunk.place, chunk.heading, row.hash, chunk.tokens];
            let new = self.connection().prepare_cached(sql)?.insert(values)?;
            for table in tables {
                self.connection().prepare_cached(table)?.execute((old, new))?;
            }
            let sql = "UPDATE sparse_terms SET chunk = ?3 WHERE term = ?1 AND chunk = ?2";
            for (term, _) in sparse_values(&sparse) {
                self.connection().prepare_cached(sql)?.execute((term, old, new))?;
            }
            self.add_full_text(new, (&title, chunk.heading.as_deref(), &text))?;
        }
        Ok(())
    }
}
