//! How a product is cut into tasks.

use crate::DType;
use crate::cpu::gemm::{BLOCK, PANEL};
use crate::cpu::{Isa, amx::bf16x3};
use std::ops::Range;

// A row's two parts in bytes are in one task: see `Codes::rows`.
const _: () = assert!(PANEL.is_multiple_of(2) && LANES.is_multiple_of(2));

/// Rows of which every tile of registers holds a whole number, or nearly.
const LANES: usize = 4;

/// Rows of a task in tiles, and bytes of panels: what a second-level cache keeps while rows pass by. A thread's tasks of the same
/// panels follow each other.
const TILES: usize = 64;
const KEPT: usize = 5 << 18;

/// Rows of a task of f32 in tiles, at most: each panel is split for all of them, so that few rows are cut by columns alone. And panels
/// of it, where their sums wait in memory.
const MANY: usize = 256;
const WAITING: usize = 12;

/// By what a task multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// Vectors.
    Lanes,
    /// Tiles of bf16 or bytes.
    Tiles,
    /// Tiles of bf16, with f32 split into three of them.
    Thirds,
}

impl Path {
    /// For rows and panels of these formats. Few rows go the way of many, so that a row is the same in any company.
    pub(super) fn of(isa: Isa, rows: DType, panels: DType) -> Path {
        match (isa, rows, panels) {
            (Isa::Amx, DType::BF16, DType::BF16) => Path::Tiles,
            (Isa::Amx, DType::F32, DType::F32) => Path::Thirds,
            _ => Path::Lanes,
        }
    }
}

/// The output in tasks of so many rows, and of fewer columns when rows alone would leave threads idle.
pub(super) struct Cut {
    pub(super) path: Path,
    block: usize,
    blocks: usize,
    columns: usize,
    per_task: usize,
    /// Blocks of rows of which all tasks follow each other: a thread's.
    together: usize,
}

impl Cut {
    /// Of `rows` × `n` results; `depth`: bytes of a column of the weight.
    pub(super) fn of(path: Path, rows: usize, n: usize, depth: usize) -> Cut {
        let panels = n.div_ceil(PANEL).max(1);
        let threads = crate::threads::count().max(1);
        // Rows of a block at most, of which it has a whole number of so many; and panels of a task at most.
        let (rows_at_most, unit, panels_at_most) = match path {
            Path::Lanes => (BLOCK, LANES, panels),
            Path::Tiles => (TILES, PANEL, KEPT / (depth * PANEL).max(1)),
            Path::Thirds if depth > bf16x3::DEPTH * size_of::<f32>() => (MANY, PANEL, WAITING),
            Path::Thirds => (MANY, PANEL, panels),
        };
        // As many blocks for each thread as for any other, and none smaller than the others, where there are rows for it.
        let mut blocks = rows.div_ceil(rows_at_most).max(1);
        if path != Path::Thirds && rows >= 2 * unit * threads {
            blocks = blocks.next_multiple_of(threads);
        }
        let block = rows.div_ceil(blocks).next_multiple_of(unit).max(unit);
        let blocks = rows.div_ceil(block).max(1);
        let columns = (3 * threads).div_ceil(blocks).clamp(panels.div_ceil(panels_at_most.clamp(1, panels)), panels);
        Cut { path, block, blocks, per_task: panels.div_ceil(columns), columns, together: blocks.div_ceil(threads) }
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.blocks * self.columns
    }

    /// The rows and the panels of a task; both may reach beyond what is there.
    pub(super) fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let first = task / (self.columns * self.together) * self.together;
        let (rest, own) = (task - first * self.columns, self.together.min(self.blocks - first));
        let (column, block) = (rest / own, first + rest % own);
        let rows = block * self.block..(block + 1) * self.block;
        (rows, column * self.per_task..(column + 1) * self.per_task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_is_in_one_task() {
        for path in [Path::Lanes, Path::Tiles, Path::Thirds] {
            for rows in [1, 5, 47, 64, 128, 200, 255, 300, 900, 4096] {
                for (n, depth) in [(1, 64), (33, 64), (384, 6144), (1536, 1536), (70, 1)] {
                    let cut = Cut::of(path, rows, n, depth);
                    let panels = n.div_ceil(PANEL);
                    let mut taken = vec![0u8; rows * panels];
                    for task in 0..cut.tasks() {
                        let (own, columns) = cut.task(task);
                        for row in own.start..own.end.min(rows) {
                            (columns.start..columns.end.min(panels)).for_each(|panel| taken[row * panels + panel] += 1);
                        }
                    }
                    assert!(taken.iter().all(|n| *n == 1), "{rows} × {n} of {depth} bytes");
                }
            }
        }
    }
}
