//! Partition of a matrix product into tasks.

use crate::DType;
use crate::cpu::gemm::{BLOCK, PANEL};
use crate::cpu::{Isa, amx::bf16x3};
use std::ops::Range;

// The two parts of an int8 row are in one task: see `Codes::rows`.
const _: () = assert!(PANEL.is_multiple_of(2) && LANE_ROWS.is_multiple_of(2));

/// Rows of a block are a multiple of this, so that register tiles are full, or nearly.
const LANE_ROWS: usize = 4;

/// Rows of a task in AMX tiles, and bytes of its panels, which stay in a second-level cache while
/// the rows are read. A thread's tasks with the same panels are consecutive.
const TILE_ROWS: usize = 64;
const TILE_PANEL_BYTES: usize = 5 << 18;

/// Limits of a bf16x3 task. Many rows, because each task splits its panels once for all of its
/// rows; so few rows are partitioned by columns alone. And few panels, if partial sums are stored
/// in memory.
const BF16X3_ROWS: usize = 256;
const BF16X3_PANELS: usize = 12;

/// How a task multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// SIMD vectors.
    Lanes,
    /// AMX tiles of bf16 or int8.
    Tiles,
    /// AMX tiles of bf16, with each f32 split into three bf16: see [`bf16x3`].
    Bf16x3,
}

impl Path {
    /// The path for these dtypes. It does not depend on the number of rows, so that a row's result
    /// does not depend on its batch.
    pub(super) fn of(isa: Isa, rows: DType, panels: DType) -> Path {
        match (isa, rows, panels) {
            (Isa::Amx, DType::BF16, DType::BF16) => Path::Tiles,
            (Isa::Amx, DType::F32, DType::F32) => Path::Bf16x3,
            _ => Path::Lanes,
        }
    }
}

/// Partition of the output into tasks: blocks of rows, and groups of columns if rows alone would
/// leave threads idle.
pub(super) struct Tiling {
    pub(super) path: Path,
    block: usize,
    blocks: usize,
    columns: usize,
    per_task: usize,
    /// Consecutive blocks of rows that share a thread.
    group: usize,
}

impl Tiling {
    /// Partition of `rows` × `n` results; `depth`: bytes of a column of the weight.
    pub(super) fn of(path: Path, rows: usize, n: usize, depth: usize) -> Tiling {
        let panels = n.div_ceil(PANEL).max(1);
        let threads = crate::threads::count().max(1);
        // Limits per task: rows, the multiple that they are rounded to, and panels.
        let (rows_at_most, unit, panels_at_most) = match path {
            Path::Lanes => (BLOCK, LANE_ROWS, panels),
            Path::Tiles => (TILE_ROWS, PANEL, TILE_PANEL_BYTES / (depth * PANEL).max(1)),
            Path::Bf16x3 if depth > bf16x3::DEPTH * size_of::<f32>() => (BF16X3_ROWS, PANEL, BF16X3_PANELS),
            Path::Bf16x3 => (BF16X3_ROWS, PANEL, panels),
        };
        // If there are enough rows, all threads get the same number of blocks, and all blocks the
        // same size.
        let mut blocks = rows.div_ceil(rows_at_most).max(1);
        if path != Path::Bf16x3 && rows >= 2 * unit * threads {
            blocks = blocks.next_multiple_of(threads);
        }
        let block = rows.div_ceil(blocks).next_multiple_of(unit).max(unit);
        let blocks = rows.div_ceil(block).max(1);
        let columns = (3 * threads).div_ceil(blocks).clamp(panels.div_ceil(panels_at_most.clamp(1, panels)), panels);
        Tiling { path, block, blocks, per_task: panels.div_ceil(columns), columns, group: blocks.div_ceil(threads) }
    }

    /// Number of tasks.
    pub(super) fn tasks(&self) -> usize {
        self.blocks * self.columns
    }

    /// The rows and panels of a task; both may extend beyond the end.
    pub(super) fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let first = task / (self.columns * self.group) * self.group;
        let (in_group, group) = (task - first * self.columns, self.group.min(self.blocks - first));
        let (column, block) = (in_group / group, first + in_group % group);
        let rows = block * self.block..(block + 1) * self.block;
        (rows, column * self.per_task..(column + 1) * self.per_task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_is_in_one_task() {
        for path in [Path::Lanes, Path::Tiles, Path::Bf16x3] {
            for rows in [1, 5, 47, 64, 128, 200, 255, 300, 900, 4096] {
                for (n, depth) in [(1, 64), (33, 64), (384, 6144), (1536, 1536), (70, 1)] {
                    let tiling = Tiling::of(path, rows, n, depth);
                    let panels = n.div_ceil(PANEL);
                    let mut count = vec![0u8; rows * panels];
                    for task in 0..tiling.tasks() {
                        let (group, columns) = tiling.task(task);
                        for row in group.start..group.end.min(rows) {
                            (columns.start..columns.end.min(panels)).for_each(|panel| count[row * panels + panel] += 1);
                        }
                    }
                    assert!(count.iter().all(|n| *n == 1), "{rows} × {n} of {depth} bytes");
                }
            }
        }
    }
}
