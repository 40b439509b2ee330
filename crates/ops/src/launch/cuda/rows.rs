//! Who makes a row: see `rows.cuh`.

use super::Grid;
use crate::DType;

/// Warps of a block that has a row for each.
const WARPS: usize = 4;

/// Rows up to which a block should be as wide as it can: there are not enough of them to hide that each waits for its own reads.
const FEW: usize = 264;

/// Threads of a block.
const MOST: usize = 1024;

/// The kind of kernel for rows of `n` elements, and its grid. `in_runs` says that all rows begin at multiples of 16 bytes and have
/// whole ones.
pub(crate) fn kind(rows: usize, n: usize, dtype: DType, in_runs: bool) -> (&'static str, Grid) {
    let run = 16 / dtype.size();
    let blocks = |held: usize| Grid::of(rows, n.div_ceil(held).next_multiple_of(32).min(MOST));
    let warps = Grid::of(rows.div_ceil(WARPS), 32 * WARPS);
    match n {
        ..=512 if in_runs => ("512", warps),
        ..=1024 if in_runs => ("1024", warps),
        ..=256 => ("odd", warps),
        _ if in_runs && rows <= FEW && n <= MOST * run => ("one", blocks(run)),
        _ if in_runs => ("four", blocks(4 * run)),
        _ => ("long", blocks(4)),
    }
}
