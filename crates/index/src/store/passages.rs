//! Reading for search: full text, postings, vectors, and what a hit shows.

use std::ops::{ControlFlow, Range};

use rusqlite::{MAIN_DB, OptionalExtension};

use super::Reader;
use super::metadata::{add_built_in, from_json};
use crate::document::{Chunk, Kind, Metadata, Unit};
use crate::error::Result;
use crate::index::Passage;

/// The most chunks that [`Reader::passage`] adds on one side.
const MAX_AROUND: usize = 100;

/// A chunk as stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChunkRow {
    pub(crate) id: i64,
    pub(crate) ordinal: i64,
    pub(crate) hash: Vec<u8>,
    pub(crate) chunk: Chunk,
}

/// What a hit shows.
#[derive(Debug, Clone)]
pub(crate) struct PassageRow {
    pub(crate) document: i64,
    pub(crate) path: String,
    pub(crate) row: Option<u64>,
    pub(crate) title: Option<String>,
    pub(crate) unit: Unit,
    pub(crate) metadata: Metadata,
    pub(crate) chunk: Chunk,
}

/// The columns of a chunk, from `c.ordinal` on.
const CHUNK: &str = "c.id, c.ordinal, c.hash, c.start, c.stop, c.place, c.heading, c.tokens";

fn chunk_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<ChunkRow> {
    let byte = |i: usize| row.get::<_, i64>(i).map(|byte| usize::try_from(byte).unwrap_or(0));
    let chunk = Chunk { range: byte(3)?..byte(4)?, place: row.get(5)?, heading: row.get(6)?, tokens: row.get(7)? };
    Ok(ChunkRow { id: row.get(0)?, ordinal: row.get(1)?, hash: row.get(2)?, chunk })
}

impl Reader<'_> {
    /// The chunks of a document, in order.
    pub(crate) fn chunk_rows(&self, document: i64) -> Result<Vec<ChunkRow>> {
        let sql = format!("SELECT {CHUNK} FROM chunks c WHERE c.document = ?1 ORDER BY c.ordinal");
        let mut find = self.connection.prepare_cached(&sql)?;
        let rows = find.query_map([document], chunk_row)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// What stands for a document in the full text: its title, or the name of its file.
    pub(crate) fn full_text_title(&self, document: i64) -> Result<String> {
        let sql = "SELECT d.title, f.relative FROM documents d JOIN files f ON f.id = d.file WHERE d.id = ?1";
        let mut find = self.connection.prepare_cached(sql)?;
        let (title, relative): (Option<String>, String) =
            find.query_row([document], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(full_text_title(title.as_deref(), &relative).to_owned())
    }

    /// A part of a document's text. Reads only the pages that have it.
    pub(crate) fn slice(&self, document: i64, range: Range<usize>) -> Result<String> {
        let blob = self.connection.blob_open(MAIN_DB, c"documents", c"text", document, true)?;
        let end = range.end.min(blob.len());
        let start = range.start.min(end);
        let mut bytes = vec![0; end - start];
        blob.read_at_exact(&mut bytes, start)?;
        // Chunks end between characters; only a damaged file needs the replacement.
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// What a hit shows of a chunk.
    pub(crate) fn passage_row(&self, chunk: i64) -> Result<Option<PassageRow>> {
        let sql = format!(
            "SELECT {CHUNK}, d.id, f.path, d.row, d.title, d.unit, d.metadata
             FROM chunks c JOIN documents d ON d.id = c.document JOIN files f ON f.id = d.file WHERE c.id = ?1"
        );
        let mut find = self.connection.prepare_cached(&sql)?;
        let row = find.query_row([chunk], |row| {
            Ok(PassageRow {
                document: row.get(8)?,
                path: row.get(9)?,
                row: row.get::<_, Option<i64>>(10)?.and_then(|row| u64::try_from(row).ok()),
                title: row.get(11)?,
                unit: serde_json::from_str(&row.get::<_, String>(12)?).unwrap_or_default(),
                metadata: from_json(&row.get::<_, String>(13)?),
                chunk: chunk_row(row)?.chunk,
            })
        });
        Ok(row.optional()?)
    }

    /// The document of a chunk, and its metadata with the keys that every document has.
    pub(crate) fn filter_metadata(&self, document: i64) -> Result<Metadata> {
        let sql =
            "SELECT d.metadata, f.relative, d.kind FROM documents d JOIN files f ON f.id = d.file WHERE d.id = ?1";
        let mut find = self.connection.prepare_cached(sql)?;
        let row = find.query_row([document], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        });
        let Some((json, relative, kind)) = row.optional()? else { return Ok(Metadata::new()) };
        let mut metadata = from_json(&json);
        add_built_in(&mut metadata, &relative, serde_json::from_str(&kind).unwrap_or(Kind::Text));
        Ok(metadata)
    }

    /// The document of a chunk; `None`: there is no such chunk.
    pub(crate) fn document_of(&self, chunk: i64) -> Result<Option<i64>> {
        let mut find = self.connection.prepare_cached("SELECT document FROM chunks WHERE id = ?1")?;
        Ok(find.query_row([chunk], |row| row.get(0)).optional()?)
    }

    /// The passage of a chunk with the chunks around it.
    pub(crate) fn passage(&self, chunk: i64, before: usize, after: usize) -> Result<Option<Passage>> {
        let Some(document) = self.document_of(chunk)? else { return Ok(None) };
        let Some(info) = self.document(document)? else { return Ok(None) };
        // A document may have ten thousands of chunks.
        let sql = format!(
            "SELECT {CHUNK} FROM chunks o JOIN chunks c ON c.document = o.document
             WHERE o.id = ?1 AND c.ordinal BETWEEN o.ordinal - ?2 AND o.ordinal + ?3 ORDER BY c.ordinal"
        );
        let around = (chunk, before.min(MAX_AROUND) as i64, after.min(MAX_AROUND) as i64);
        let mut find = self.connection.prepare_cached(&sql)?;
        let rows = find.query_map(around, chunk_row)?.collect::<rusqlite::Result<Vec<ChunkRow>>>()?;
        let Some(at) = rows.iter().position(|row| row.id == chunk) else { return Ok(None) };
        let (first, last) = (&rows[0].chunk, &rows[rows.len() - 1].chunk);
        let range = first.range.start..last.range.end;
        let text = self.slice(document, range.clone())?;
        let passage = rows[at].chunk.range.clone();
        let heading = rows[at].chunk.heading.clone();
        Ok(Some(Passage { document: info, heading, place: first.place, text, range, passage }))
    }

    /// Chunks that match an expression of FTS5, best first, with their scores, until `each` breaks;
    /// at most `most`, if it is given.
    pub(crate) fn each_match(
        &self,
        expression: &str,
        most: Option<usize>,
        mut each: impl FnMut(i64, f32) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        // Titles and headings are short and say what a passage is about.
        let sql = "SELECT rowid, bm25(full_text, 4.0, 2.0, 1.0) AS score FROM full_text WHERE full_text MATCH ?1
                   ORDER BY score, rowid LIMIT ?2";
        let mut find = self.connection.prepare_cached(sql)?;
        // SQLite takes a negative limit as none.
        let most = most.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
        let mut rows = find.query((expression, most))?;
        while let Some(row) = rows.next()? {
            // FTS5 gives better matches lower numbers.
            if each(row.get(0)?, -row.get::<_, f32>(1)?)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The chunks whose sparse embeddings have a term, with its weights.
    pub(crate) fn each_posting(&self, term: u32, mut each: impl FnMut(i64, f32)) -> Result<()> {
        let sql = "SELECT chunk, weight FROM sparse_terms WHERE term = ?1";
        let mut find = self.connection.prepare_cached(sql)?;
        let mut rows = find.query([term])?;
        while let Some(row) = rows.next()? {
            each(row.get(0)?, row.get(1)?);
        }
        Ok(())
    }

    /// The dense vectors of the chunks with ids in a range, ascending, as stored.
    pub(crate) fn each_vector(&self, ids: Range<i64>, mut each: impl FnMut(i64, &[u8]) -> Result<()>) -> Result<()> {
        let sql = "SELECT chunk, vector FROM dense WHERE chunk >= ?1 AND chunk < ?2 ORDER BY chunk";
        let mut find = self.connection.prepare_cached(sql)?;
        let mut rows = find.query([ids.start, ids.end])?;
        while let Some(row) = rows.next()? {
            each(row.get(0)?, row.get_ref(1)?.as_blob().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Calls `take` with the dense vector of a chunk, as stored; `None`: there is none.
    pub(crate) fn vector<T>(&self, chunk: i64, take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let mut find = self.connection.prepare_cached("SELECT vector FROM dense WHERE chunk = ?1")?;
        let row = find.query_row([chunk], |row| Ok(take(row.get_ref(0)?.as_blob().unwrap_or_default())));
        Ok(row.optional()?)
    }

    /// The multi-vector embedding of a chunk, as stored; `None`: there is none.
    pub(crate) fn multi_vector(&self, chunk: i64) -> Result<Option<Vec<u8>>> {
        let mut find = self.connection.prepare_cached("SELECT vectors FROM multi WHERE chunk = ?1")?;
        Ok(find.query_row([chunk], |row| row.get(0)).optional()?)
    }
}

/// What stands for a document in the full text: its title, or the name of its file.
pub(crate) fn full_text_title<'a>(title: Option<&'a str>, relative: &'a str) -> &'a str {
    match title {
        Some(title) => title,
        None => relative.rsplit(['/', '\\']).next().unwrap_or(relative),
    }
}

/// The longest context of a passage, in bytes.
const MAX_CONTEXT: usize = 160;

/// The text that is embedded, and that rerankers read: the passage below its title and headings.
pub(crate) fn embedded_text(title: Option<&str>, heading: Option<&str>, text: &str) -> String {
    let parts: Vec<&str> =
        [title, heading].into_iter().flatten().map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return text.to_owned();
    }
    let mut context = match parts[..] {
        // A page's title is usually its first heading too.
        [title, heading] if heading.starts_with(title) => heading.to_owned(),
        _ => parts.join(" > "),
    };
    if context.len() > MAX_CONTEXT {
        let end = (0..=MAX_CONTEXT).rev().find(|i| context.is_char_boundary(*i)).unwrap_or(0);
        context.truncate(end);
    }
    format!("{context}\n{text}")
}

#[test]
fn passages_are_embedded_below_their_titles() {
    assert_eq!(embedded_text(None, None, "text"), "text");
    assert_eq!(embedded_text(Some("A"), Some("B > C"), "text"), "A > B > C\ntext");
    assert_eq!(embedded_text(Some("A"), Some("A > C"), "text"), "A > C\ntext");
    assert_eq!(embedded_text(Some(" "), Some("C"), "text"), "C\ntext");
    assert_eq!(embedded_text(Some(&"é".repeat(200)), None, "t").len(), 160 + 2);
}
