//! A segment, mapped into memory.
#![allow(unsafe_code, reason = "maps a file")]

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::Bitmap;
use super::columns::{Columns, cast};
use super::footer::{self, PartCheck, SegmentInfo, damaged, hex};
use super::kernels::{BLOCK, bit_bytes};
use super::quantize::stride;
use crate::document::Metadata;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::read::{FileRef, open_regular};

/// A segment that has been opened. The sizes and places of its sections have been checked; what is
/// in them has not ([`Segment::verify`] does), so no number from the file is used as an index
/// without a check.
pub struct Segment {
    path: PathBuf,
    map: Mmap,
    info: SegmentInfo,
    dimensions: usize,
    rows: usize,
    codes: Range<usize>,
    bits: Range<usize>,
    factors: Range<usize>,
    scales: Range<usize>,
    ids: Range<usize>,
    mean: Range<usize>,
    columns: Columns,
    digest: String,
    footer_start: usize,
}

impl Segment {
    /// Opens the segment of that name in a folder. The time does not depend on the number of rows.
    pub fn open(dir: &Path, info: &SegmentInfo) -> Result<Segment> {
        let path = dir.join(&info.name);
        // The name comes from the database: it must not lead to another folder.
        if Path::new(&info.name).file_name() != Some(OsStr::new(&info.name)) {
            return Err(damaged(&path, "is not a name in the folder of the segments".into()));
        }
        let file = open_regular(FileRef { root: dir, relative: Path::new(&info.name) }).map_err(Error::io(&path))?;
        if file.metadata().map_err(Error::io(&path))?.len() == 0 {
            return Err(damaged(&path, "is not a whole segment".into()));
        }
        // SAFETY: the map is only read, and any byte is a valid value. Writers replace segments by
        // renaming and delete them, which leaves this file as it is; they never truncate one. A
        // foreign process that does makes reads fail with SIGBUS, as with every mapped file.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(&path))?;
        Segment::new(path, map, info)
    }

    fn new(path: PathBuf, map: Mmap, info: &SegmentInfo) -> Result<Segment> {
        if cfg!(target_endian = "big") {
            return Err(damaged(&path, "needs a little-endian processor".into()));
        }
        let (footer, footer_start) = footer::read(&path, &map, &info.checksum)?;
        footer.check(&path, info)?;
        // None of these overflows: `check` bounds rows by 2³² and dimensions by 2¹⁴.
        let (rows, dimensions) = (footer.rows, footer.dimensions as usize);
        let blocks = rows.div_ceil(BLOCK as u64);
        let check = PartCheck { path: &path, end: footer_start };
        let segment = Segment {
            codes: check.exactly(footer.codes, rows * stride(dimensions) as u64, "int8 codes")?,
            bits: check.exactly(footer.bits, blocks * (bit_bytes(dimensions) * BLOCK) as u64, "binary codes")?,
            factors: check.exactly(footer.factors, blocks * BLOCK as u64 * 4, "factors")?,
            scales: check.exactly(footer.scales, rows * 4, "scales")?,
            ids: check.exactly(footer.ids, rows * 8, "ids")?,
            mean: check.exactly(footer.mean, dimensions as u64 * 4, "the mean")?,
            columns: Columns::new(footer.columns, rows, &check)?,
            digest: footer.digest,
            info: info.clone(),
            rows: rows as usize,
            footer_start,
            dimensions,
            map,
            path: path.clone(),
        };
        // Every scan reads these, so the system may read them ahead. It is only a hint.
        for part in [&segment.bits, &segment.factors, &segment.scales, &segment.ids] {
            #[cfg(unix)]
            let _ = segment.map.advise_range(memmap2::Advice::WillNeed, part.start, part.len());
            #[cfg(not(unix))]
            let _ = part;
        }
        Ok(segment)
    }

    /// What the database keeps of the segment.
    pub fn info(&self) -> &SegmentInfo {
        &self.info
    }

    /// How many chunks the segment has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The dimensions of the vectors.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The ids of the chunks, ascending.
    pub fn chunks(&self) -> &[i64] {
        cast(&self.map[self.ids.clone()])
    }

    /// The row of a chunk.
    pub fn row(&self, chunk: i64) -> Option<usize> {
        self.chunks().binary_search(&chunk).ok()
    }

    /// The rows without those of some chunks; chunks that the segment lacks are ignored.
    pub fn rows_without(&self, deleted: &[i64]) -> Bitmap {
        let mut rows = Bitmap::all(self.rows);
        deleted.iter().filter_map(|chunk| self.row(*chunk)).for_each(|row| rows.set(row, false));
        rows
    }

    /// The rows that pass a filter.
    pub fn rows_matching(&self, filter: &Filter) -> Bitmap {
        self.columns.rows_matching(&self.map, self.rows, filter)
    }

    /// The metadata of a row, without nulls and NaN. Empty for a row that the segment lacks.
    pub fn metadata(&self, row: usize) -> Metadata {
        match u32::try_from(row) {
            Ok(row) => self.columns.metadata(&self.map, row),
            Err(_) => Metadata::new(),
        }
    }

    /// Reads the whole file and compares it with its checksum.
    pub fn verify(&self) -> Result<()> {
        match hex(Sha256::digest(&self.map[..self.footer_start]).as_slice()) == self.digest {
            true => Ok(()),
            false => Err(damaged(&self.path, "has changed since it was written; it will be built again".into())),
        }
    }

    /// The binary codes, block by block.
    pub(super) fn bits(&self) -> &[u8] {
        &self.map[self.bits.clone()]
    }

    /// The factors of the binary scores, by block.
    pub(super) fn factors(&self) -> &[[f32; BLOCK]] {
        cast::<f32>(&self.map[self.factors.clone()]).as_chunks().0
    }

    /// The int8 codes and the scale of a row, which must be one of the segment.
    pub(super) fn int8_row(&self, row: usize) -> (&[i8], f32) {
        let stride = stride(self.dimensions);
        (&cast::<i8>(&self.map[self.codes.clone()])[row * stride..][..stride], self.scales()[row])
    }

    fn scales(&self) -> &[f32] {
        cast(&self.map[self.scales.clone()])
    }

    /// The mean of the rows.
    pub(super) fn mean(&self) -> &[f32] {
        cast(&self.map[self.mean.clone()])
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("path", &self.path).field("info", &self.info).finish_non_exhaustive()
    }
}
