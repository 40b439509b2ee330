//! How a product is cut into tasks.

use crate::cpu::elem::Elem;
use crate::cpu::gemm::{BLOCK, PANEL};
use crate::cpu::rows::Rows;
use crate::cpu::{Isa, amx::thirds};
use crate::{DType, ladder};
use std::ops::Range;

// A row's two parts in bytes are in one task: see `Codes::rows`.
const _: () = assert!(TILES.is_multiple_of(2) && BLOCK.is_multiple_of(2));

/// Rows of a task in tiles, and bytes of panels: what a second-level cache keeps while rows pass by. A thread's tasks of the same
/// panels follow each other.
const TILES: usize = 64;
const KEPT: usize = 5 << 18;

/// Rows of a task of f32 in tiles, at most: each panel is split for them all. And panels of it, where their sums wait in memory.
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
    /// For rows `x` and panels of `dtype`.
    pub(super) fn of<T: Elem>(isa: Isa, dtype: DType, x: &Rows<'_, T>) -> Path {
        match (isa, T::TYPE, dtype) {
            (Isa::Amx, DType::BF16, DType::BF16) => Path::Tiles,
            (Isa::Amx, DType::F32, DType::F32) if x.rows >= thirds::LEAST && ladder::f32_in_tiles() => Path::Thirds,
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
        let (block, most) = match path {
            Path::Lanes => (BLOCK, panels),
            Path::Tiles => (TILES, KEPT / (depth * PANEL).max(1)),
            Path::Thirds => {
                let even = rows.div_ceil(rows.div_ceil(MANY).max(1)).next_multiple_of(PANEL);
                (even, if depth > thirds::DEPTH * size_of::<f32>() { WAITING } else { panels })
            }
        };
        let blocks = rows.div_ceil(block.max(1)).max(1);
        let threads = crate::threads::count().max(1);
        let columns = (3 * threads).div_ceil(blocks).clamp(panels.div_ceil(most.clamp(1, panels)), panels);
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
