//! The files of codes that searches use, open from one search to the next.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::codes::{Bitmap, Segment, SegmentInfo};
use crate::error::{Error, Result};
use crate::store::{Reader, SegmentList, beside, gaps};

/// The files of codes of one state of the database.
#[derive(Debug)]
pub(crate) struct SegmentSet {
    list: SegmentList,
    pub(crate) segments: Vec<Arc<Segment>>,
    /// For each segment the rows that are not deleted; `None`: none is deleted.
    pub(crate) live: Option<Vec<Bitmap>>,
    /// The ids of chunks that no usable segment covers.
    pub(crate) gaps: Vec<Range<i64>>,
    /// Why segments cannot be used.
    pub(crate) damaged: Vec<String>,
    /// A segment is gone. The writer may have replaced it after the caller's snapshot was taken.
    pub(crate) is_missing: bool,
}

/// Keeps segments open.
pub(crate) struct SegmentCache {
    dir: PathBuf,
    current: Mutex<Option<Arc<SegmentSet>>>,
}

impl SegmentCache {
    /// The cache of the index in `path`.
    pub(crate) fn new(path: &Path) -> SegmentCache {
        SegmentCache { dir: beside(path, ".codes"), current: Mutex::default() }
    }

    /// The files of codes that belong to the reader's snapshot. Damaged ones are left out: searches
    /// read the vectors of their chunks from the database.
    pub(crate) fn load(&self, reader: &Reader<'_>) -> Result<Arc<SegmentSet>> {
        let generation = reader.generation()?;
        let cached = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(cached) = &cached
            && cached.list.generation == generation
        {
            return Ok(Arc::clone(cached));
        }
        let known = cached.as_ref().map_or(&[][..], |cached| &cached.segments[..]);
        let set = Arc::new(self.open(reader, known)?);
        // A damaged file may be a passing trouble (too many open files): the next search tries again.
        let is_newer = cached.as_ref().is_none_or(|cached| cached.list.generation < generation);
        if is_newer && set.damaged.is_empty() {
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&set));
        }
        Ok(set)
    }

    fn open(&self, reader: &Reader<'_>, known: &[Arc<Segment>]) -> Result<SegmentSet> {
        let list = reader.segments()?;
        let (mut segments, mut damaged, mut is_missing) = (Vec::new(), Vec::new(), false);
        for info in &list.segments {
            let open = || Segment::open(&self.dir, info).map(Arc::new);
            match known.iter().find(|segment| segment.info() == info).map(Arc::clone).map_or_else(open, Ok) {
                Ok(segment) => segments.push(segment),
                Err(error) => {
                    is_missing |= is_not_found(&error);
                    damaged.push(error.to_string());
                }
            }
        }
        let deleted = if segments.is_empty() { Vec::new() } else { reader.deleted()? };
        let live = |segment: &Arc<Segment>| segment.rows_without(&deleted);
        let live = (!deleted.is_empty()).then(|| segments.iter().map(live).collect());
        let infos: Vec<&SegmentInfo> = segments.iter().map(|segment| segment.info()).collect();
        let gaps = gaps(infos);
        Ok(SegmentSet { list, segments, live, gaps, damaged, is_missing })
    }
}

impl SegmentSet {
    /// The segment that has a chunk, and its row there.
    pub(super) fn row(&self, chunk: i64) -> Option<(usize, usize)> {
        // The ranges of ids ascend and do not overlap.
        let at = self.segments.partition_point(|segment| segment.info().last < chunk);
        Some((at, self.segments.get(at)?.row(chunk)?))
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound)
}
