//! Which kernel and grid process rows, a warp or a block each: see `rows.cuh`.

use super::Grid;
use crate::DType;

/// Warps of a block that processes a row with each warp.
const WARPS: usize = 4;

/// Up to this many rows a block should be as wide as possible: there are too few rows to hide the
/// latency of their reads.
const MAX_WIDE_BLOCK_ROWS: usize = 264;

/// Most threads of a block.
const MAX_THREADS: usize = 1024;

/// The kind of kernel for rows of `n` elements, and its grid. `in_runs` says that all rows begin at
/// multiples of 16 bytes and consist of whole runs of 16 bytes.
pub(crate) fn kind(rows: usize, n: usize, dtype: DType, in_runs: bool) -> (&'static str, Grid) {
    let run = 16 / dtype.size();
    let blocks = |per_thread: usize| Grid::of(rows, n.div_ceil(per_thread).next_multiple_of(32).min(MAX_THREADS));
    let warps = Grid::of(rows.div_ceil(WARPS), 32 * WARPS);
    match n {
        ..=512 if in_runs => ("512", warps),
        ..=1024 if in_runs => ("1024", warps),
        ..=256 => ("unaligned", warps),
        _ if in_runs && rows <= MAX_WIDE_BLOCK_ROWS && n <= MAX_THREADS * run => ("one", blocks(run)),
        _ if in_runs => ("four", blocks(4 * run)),
        _ => ("long", blocks(4)),
    }
}
