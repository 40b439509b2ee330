//! Compressed copies of the embeddings, for scans of a million rows in milliseconds.
//!
//! A *segment* is a file beside the database, mapped into memory, with four things for each chunk:
//! its id; a binary code, the signs of the vector less the mean of the segment; an int8 code; and
//! its metadata, as columns for filters. Segments are derived from the database: a segment that is
//! missing or damaged is built again, and readers use the database until then.
//!
//! [`scan`] scores the binary codes of all rows, then the int8 codes of the best some thousand,
//! and returns the best some hundred; the caller scores these in f32.

mod bitmap;
mod columns;
mod footer;
mod kernels;
mod merge;
mod quantize;
mod scan;
mod segment;
mod top;
mod writer;

pub use bitmap::Bitmap;
pub use footer::SegmentInfo;
pub(crate) use merge::MAX_SEGMENTS;
pub use merge::{merge, needs_merge, remove_stale};
pub use scan::{Candidate, ScanOptions, scan};
pub use segment::Segment;
pub use writer::SegmentWriter;

/// The widest vectors that segments take. The sums of the binary scan are exact enough up to here.
pub const MAX_DIMENSIONS: usize = 16_384;

/// The instruction set of the scan's kernels on this processor, for reports.
pub fn instruction_set() -> String {
    format!("{:?}", kernels::Isa::best())
}
