//! Which files of codes are valid, and which of their chunks are deleted.

use std::ops::Range;

use super::metadata::enum_json;
use super::{Batch, Reader};
use crate::codes::SegmentInfo;
use crate::document::Metadata;
use crate::error::Result;

/// The valid files of codes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SegmentList {
    /// Grows whenever the files, or the chunks deleted from them, are others than before.
    pub(crate) generation: i64,
    /// By the ids of their chunks; the ranges do not overlap.
    pub(crate) segments: Vec<SegmentInfo>,
}

/// The ids that none of the segments covers, in ranges. Ids begin with 1.
pub(crate) fn gaps<'a>(segments: impl IntoIterator<Item = &'a SegmentInfo>) -> Vec<Range<i64>> {
    let mut next = 1;
    let mut gaps = Vec::new();
    for segment in segments {
        if segment.first > next {
            gaps.push(next..segment.first);
        }
        next = next.max(segment.last.saturating_add(1));
    }
    gaps.push(next..i64::MAX);
    gaps
}

impl Reader<'_> {
    /// The valid files of codes.
    pub(crate) fn segments(&self) -> Result<SegmentList> {
        let generation = self.generation()?;
        let mut find = self.connection.prepare_cached("SELECT info FROM segments ORDER BY first")?;
        let infos = find.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
        // A row that cannot be read is a file that is not used.
        let segments = infos.iter().filter_map(|json| serde_json::from_str(json).ok()).collect();
        Ok(SegmentList { generation, segments })
    }

    /// The number of the state of segments and deleted chunks.
    pub(crate) fn generation(&self) -> Result<i64> {
        Ok(self.meta("generation")?.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// The chunks that files of codes have and that are deleted, ascending.
    pub(crate) fn deleted(&self) -> Result<Vec<i64>> {
        let mut find = self.connection.prepare_cached("SELECT chunk FROM deleted ORDER BY chunk")?;
        let deleted = find.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        Ok(deleted)
    }

    /// How many chunks have ids in a range, counted up to `limit`. In an index with vectors each has
    /// one; counting these would read them.
    pub(crate) fn count_vectors(&self, ids: &Range<i64>, limit: u64) -> Result<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM chunks WHERE id >= ?1 AND id < ?2 LIMIT ?3)";
        let mut find = self.connection.prepare_cached(sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let count: i64 = find.query_row((ids.start, ids.end, limit), |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// The dense vectors with ids in a range, ascending, as stored, with the metadata for filters.
    pub(crate) fn each_row(
        &self,
        ids: &Range<i64>,
        mut each: impl FnMut(i64, &[u8], &Metadata) -> Result<()>,
    ) -> Result<()> {
        let sql = "SELECT v.chunk, v.vector, c.document FROM dense v JOIN chunks c ON c.id = v.chunk
                   WHERE v.chunk >= ?1 AND v.chunk < ?2 ORDER BY v.chunk";
        let mut find = self.connection.prepare_cached(sql)?;
        let mut rows = find.query([ids.start, ids.end])?;
        let mut current: Option<(i64, Metadata)> = None;
        while let Some(row) = rows.next()? {
            let document: i64 = row.get(2)?;
            let metadata = match current.take() {
                Some((same, metadata)) if same == document => metadata,
                _ => self.filter_metadata(document)?,
            };
            each(row.get(0)?, row.get_ref(1)?.as_blob().unwrap_or_default(), &metadata)?;
            current = Some((document, metadata));
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// Replaces files of codes by another one, in the transaction that makes it valid. The new file
    /// does not have the chunks that are deleted.
    pub(crate) fn replace_segments(&self, removed: &[SegmentInfo], added: Option<&SegmentInfo>) -> Result<()> {
        for segment in removed {
            self.connection().prepare_cached("DELETE FROM segments WHERE name = ?1")?.execute([&segment.name])?;
            let sql = "DELETE FROM deleted WHERE chunk BETWEEN ?1 AND ?2";
            self.connection().prepare_cached(sql)?.execute([segment.first, segment.last])?;
        }
        if let Some(segment) = added {
            let sql = "INSERT OR REPLACE INTO segments (name, first, last, rows, info) VALUES (?1, ?2, ?3, ?4, ?5)";
            let rows = i64::try_from(segment.rows).unwrap_or(i64::MAX);
            let values = (&segment.name, segment.first, segment.last, rows, enum_json(segment));
            self.connection().prepare_cached(sql)?.execute(values)?;
        }
        // Chunks that no file has need not be remembered.
        let sql = "DELETE FROM deleted
                   WHERE NOT EXISTS (SELECT 1 FROM segments s WHERE deleted.chunk BETWEEN s.first AND s.last)";
        self.connection().prepare_cached(sql)?.execute([])?;
        self.new_generation();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_segments_leave() {
        let segment = |first, last| SegmentInfo { name: String::new(), rows: 1, first, last, checksum: String::new() };
        assert_eq!(gaps(&[]).as_slice(), std::slice::from_ref(&(1..i64::MAX)));
        assert_eq!(gaps(&[segment(1, 5), segment(6, 9)]).as_slice(), std::slice::from_ref(&(10..i64::MAX)));
        assert_eq!(gaps(&[segment(3, 5), segment(8, i64::MAX)]), [1..3, 6..8, i64::MAX..i64::MAX]);
    }
}
