//! The layout of a segment's file: sections at multiples of 64 bytes, then a footer in JSON that
//! says where they are, then the footer's length and the magic bytes.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MAX_DIMENSIONS;
use crate::error::{Error, Result};

/// The first and the last bytes of a file. The digit is the version of the format.
pub(super) const MAGIC: &[u8; 8] = b"SCODES1\n";
/// Sections begin at multiples of this.
pub(super) const ALIGNMENT: u64 = 64;
/// The footer's length and the magic bytes.
const TRAILER: u64 = 16;
/// A longer footer is refused. It has about 300 bytes for each key of the metadata.
pub(super) const MAX_FOOTER: u64 = 64 << 20;

/// What the database keeps of a segment: enough to find the file and to know that it is the one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    /// The file's name in the folder of the segments.
    pub name: String,
    /// How many chunks it has.
    pub rows: u64,
    /// The least id of a chunk.
    pub first: i64,
    /// The greatest id of a chunk.
    pub last: i64,
    /// SHA-256 of the footer, which has the SHA-256 of everything else; in hexadecimal.
    pub checksum: String,
}

/// Bytes of the file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Where the parts of a column are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ColumnParts {
    pub(super) key: String,
    /// The distinct values, sorted, one after the other.
    pub(super) values: Part,
    /// u64: where each value ends.
    pub(super) ends: Part,
    /// u32: the rows that have the key, ascending; absent if `codes` has all rows.
    pub(super) rows: Option<Part>,
    /// u32: the number of the row's value, from 1; 0 for a row without the key.
    pub(super) codes: Part,
}

/// Where the sections are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Footer {
    pub(super) dimensions: u64,
    pub(super) rows: u64,
    pub(super) first: i64,
    pub(super) last: i64,
    /// i8: for each row its int8 codes.
    pub(super) codes: Part,
    /// For each block of rows the binary codes.
    pub(super) bits: Part,
    /// f32: for each row, and for those that the last block lacks, the factor of the binary score.
    pub(super) factors: Part,
    /// f32: for each row the scale of its int8 codes.
    pub(super) scales: Part,
    /// i64: for each row the id of its chunk, ascending.
    pub(super) ids: Part,
    /// f32: the mean of the rows.
    pub(super) mean: Part,
    pub(super) columns: Vec<ColumnParts>,
    /// SHA-256 of everything before the footer, in hexadecimal.
    pub(super) digest: String,
}

/// The footer of a file, and where it begins.
pub(super) fn read(path: &Path, file: &[u8], checksum: &str) -> Result<(Footer, usize)> {
    let torn = || damaged(path, "is not a whole segment".into());
    let (rest, magic) = file.split_last_chunk::<8>().ok_or_else(torn)?;
    let (rest, length) = rest.split_last_chunk::<8>().ok_or_else(torn)?;
    let length = u64::from_le_bytes(*length);
    if magic != MAGIC || !file.starts_with(MAGIC) || length > MAX_FOOTER || length > rest.len() as u64 {
        return Err(torn());
    }
    let start = rest.len() - length as usize;
    let bytes = &rest[start..];
    if hex(Sha256::digest(bytes).as_slice()) != checksum {
        return Err(damaged(path, "is not the segment that the database names".into()));
    }
    let footer = serde_json::from_slice(bytes).map_err(|e| damaged(path, format!("has an unreadable footer: {e}")))?;
    Ok((footer, start))
}

/// The bytes of a footer with what follows it, and its checksum.
pub(super) fn write(footer: &Footer) -> std::io::Result<(Vec<u8>, String)> {
    let mut bytes = serde_json::to_vec(footer)?;
    if bytes.len() as u64 > MAX_FOOTER {
        let why = format!("the metadata of a segment has {} keys, which is too many", footer.columns.len());
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
    }
    let checksum = hex(Sha256::digest(&bytes).as_slice());
    let length = bytes.len() as u64;
    bytes.reserve(TRAILER as usize);
    bytes.extend(length.to_le_bytes());
    bytes.extend(MAGIC);
    Ok((bytes, checksum))
}

impl Footer {
    /// Checks the numbers on which the sizes of all sections depend.
    pub(super) fn check(&self, path: &Path, info: &SegmentInfo) -> Result<()> {
        let same = (self.rows, self.first, self.last) == (info.rows, info.first, info.last);
        let sizes =
            (1..=u64::from(u32::MAX)).contains(&self.rows) && (1..=MAX_DIMENSIONS as u64).contains(&self.dimensions);
        if !same || !sizes {
            return Err(damaged(path, "has other rows or dimensions than the database says".into()));
        }
        Ok(())
    }
}

/// Checks parts against the end of the sections.
pub(super) struct PartCheck<'a> {
    pub(super) path: &'a Path,
    /// Where the footer begins.
    pub(super) end: usize,
}

impl PartCheck<'_> {
    /// The range of a part that must have a size.
    pub(super) fn exactly(&self, part: Part, bytes: u64, what: &str) -> Result<Range<usize>> {
        if part.bytes != bytes {
            let why = format!("has {} bytes of {what}, expected {bytes}", part.bytes);
            return Err(damaged(self.path, why));
        }
        self.range(part, 1, what)
    }

    /// The range of a part that has elements of `size` bytes.
    pub(super) fn range(&self, part: Part, size: u64, what: &str) -> Result<Range<usize>> {
        let end = part.offset.checked_add(part.bytes).filter(|end| *end <= self.end as u64);
        match end {
            Some(end) if part.offset.is_multiple_of(ALIGNMENT) && part.bytes.is_multiple_of(size) => {
                Ok(part.offset as usize..end as usize)
            }
            _ => Err(damaged(self.path, format!("has {what} outside of its sections"))),
        }
    }
}

/// An error for a file that does not have the content that its name promises.
pub(super) fn damaged(path: &Path, why: String) -> Error {
    Error::Segment { path: path.into(), why }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
