//! Fewer segments: merging them, and deleting the files of those that are no longer used.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::writer::{FINISHED, PARTIAL};
use super::{Segment, SegmentInfo, SegmentWriter};
use crate::error::{Error, Result};

/// Above this number, segments are merged.
pub(crate) const MAX_SEGMENTS: usize = 8;
/// Segments are merged if more than one row of this many is deleted.
const MAX_DELETED: u64 = 10;

/// Whether segments should be merged: there are more than eight, or more than a tenth of their rows
/// is deleted.
pub fn needs_merge(segments: &[SegmentInfo], deleted: u64) -> bool {
    let rows = segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.rows));
    segments.len() > MAX_SEGMENTS || deleted.saturating_mul(MAX_DELETED) > rows
}

/// Writes one segment in place of several, without the deleted chunks. `None`: no chunk is left.
///
/// The int8 codes are copied, so repeated merges lose nothing; the mean and the binary codes are
/// computed anew. A damaged segment is an error, so that damage does not spread: the caller builds
/// the segments from the database then.
pub fn merge(dir: &Path, segments: &[Arc<Segment>], deleted: &[i64]) -> Result<Option<SegmentInfo>> {
    let deleted: HashSet<i64> = deleted.iter().copied().collect();
    let mut segments: Vec<&Segment> = segments.iter().map(Arc::as_ref).collect();
    segments.sort_by_key(|segment| segment.info().first);
    let Some(first) = segments.first().copied() else { return Ok(None) };
    let mut writer = SegmentWriter::create(dir, first.dimensions())?;
    for segment in segments {
        if segment.dimensions() != first.dimensions() {
            return Err(Error::Input("segments of different dimensions cannot be merged".into()));
        }
        segment.verify()?;
        for (row, chunk) in segment.chunks().iter().enumerate() {
            if !deleted.contains(chunk) {
                writer.push_row(segment, row)?;
            }
        }
    }
    if writer.rows() == 0 { Ok(None) } else { writer.finish().map(Some) }
}

/// Deletes the segments of a folder that are not listed, and what killed processes have left. Only
/// the one writer of an index may call it. A file that cannot be deleted, because a reader on
/// Windows has it open, stays until the next call.
pub fn remove_stale(dir: &Path, used: &[SegmentInfo]) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(dir)(error)),
    };
    let used: HashSet<&str> = used.iter().map(|segment| &segment.name[..]).collect();
    for entry in entries {
        let path = entry.map_err(Error::io(dir))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_ours = matches!(extension, Some(PARTIAL | FINISHED));
        let is_used = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| used.contains(name));
        if is_ours && !is_used {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}
