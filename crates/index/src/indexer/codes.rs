//! Writing and merging the files of codes. The database stays the source of truth: they can be lost
//! at any time.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::codes::{
    MAX_DIMENSIONS, MAX_SEGMENTS, Segment, SegmentInfo, SegmentWriter, merge, needs_merge, remove_stale,
};
use crate::error::{Error, Result};
use crate::models::EmbeddingKind;
use crate::store::{Writer, f32_values, gaps};

/// During a run, codes are written after so many new chunks.
pub(super) const EVERY: u64 = 50_000;
/// Fewer new chunks stay without codes at the end of a run: reading their vectors takes no longer
/// than opening another file.
pub(super) const LEAST: u64 = 1_000;

/// Brings the codes up to date: drops damaged files, writes files for what none covers, if these are
/// `least` chunks or more, and merges.
pub(super) fn refresh(writer: &mut Writer, least: u64) -> Result<()> {
    let Some(model) = writer.reader().model()? else { return Ok(()) };
    if model.kind == EmbeddingKind::Sparse || !(1..=MAX_DIMENSIONS).contains(&model.dimensions) {
        return Ok(());
    }
    let dir = writer.codes();
    let listed = writer.reader().segments()?.segments;
    let (usable, damaged): (Vec<_>, Vec<_>) = listed.into_iter().partition(|info| Segment::open(&dir, info).is_ok());
    if !damaged.is_empty() {
        let batch = writer.begin()?;
        batch.replace_segments(&damaged, None)?;
        batch.commit()?;
    }
    for gap in gaps(&usable) {
        // A gap between segments is what a damaged one has left.
        let least = if gap.end == i64::MAX { least } else { 1 };
        if writer.reader().count_vectors(&gap, least)? >= least {
            write(writer, (&dir, model.dimensions), &gap)?;
        }
    }
    merge_all(writer, (&dir, model.dimensions))?;
    remove_stale(&dir, &writer.reader().segments()?.segments)
}

/// Writes the codes of the chunks with ids in a range.
fn write(writer: &mut Writer, (dir, dimensions): (&Path, usize), ids: &Range<i64>) -> Result<()> {
    let mut segment = SegmentWriter::create(dir, dimensions)?;
    writer.reader().each_row(ids, |chunk, bytes, metadata| segment.push(chunk, &f32_values(bytes), metadata))?;
    if segment.rows() == 0 {
        return Ok(());
    }
    let info = match segment.finish() {
        // The metadata have too many keys for a file of codes: searches read the database.
        Err(Error::Io { error, .. }) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
        finished => finished?,
    };
    let batch = writer.begin()?;
    batch.replace_segments(&[], Some(&info))?;
    batch.commit()
}

/// Merges segments until there are few and few of their chunks are deleted.
fn merge_all(writer: &mut Writer, (dir, dimensions): (&Path, usize)) -> Result<()> {
    // Each turn leaves fewer segments or fewer deleted chunks.
    for _ in 0..4 * MAX_SEGMENTS {
        let infos = writer.reader().segments()?.segments;
        let deleted = writer.reader().deleted()?;
        if infos.is_empty() || !needs_merge(&infos, deleted.len() as u64) {
            return Ok(());
        }
        let group = group(&infos);
        let open = |info: &SegmentInfo| Segment::open(dir, info).map(Arc::new);
        let segments = group.iter().map(open).collect::<Result<Vec<_>>>();
        // Damage does not spread: what cannot be merged is written anew from the database.
        let merged = segments.and_then(|segments| merge(dir, &segments, &deleted));
        let batch = writer.begin()?;
        match &merged {
            Ok(info) => batch.replace_segments(group, info.as_ref())?,
            Err(_) => batch.replace_segments(group, None)?,
        }
        batch.commit()?;
        if merged.is_err()
            && let (Some(first), Some(last)) = (group.first(), group.last())
        {
            write(writer, (dir, dimensions), &(first.first..last.last.saturating_add(1)))?;
        }
    }
    Ok(())
}

/// The segments to merge: the two neighbours that are smallest together if there are too many,
/// otherwise all of them. Only neighbours, so that the ranges of ids never overlap.
fn group(infos: &[SegmentInfo]) -> &[SegmentInfo] {
    if infos.len() <= MAX_SEGMENTS {
        return infos;
    }
    let rows = |pair: &&[SegmentInfo]| pair.iter().map(|info| info.rows).sum::<u64>();
    infos.windows(2).min_by_key(rows).unwrap_or(infos)
}
