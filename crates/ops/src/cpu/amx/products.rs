//! AMX products of a task. A is read in place, B from its panel in groups of four bytes. While one
//! block is multiplied, the sums of the block before go to the sink: its activation costs as much
//! as the products, and runs in another part of the core.
#![allow(unsafe_code, reason = "tile instructions and the pointers they take")]

use super::dots::{Dots, Fours, Pairs, Step, load, store};
use super::{ACROSS, ROW, ROWS, STEP, SUMS, Tiles};
use crate::cpu::Lanes;
use crate::cpu::gemm::{GemmScratch, PANEL, Panels, Sink, TILE_DEPTH, aligned, padded_rows};
use crate::cpu::rows::Rows;
use half::bf16;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

/// Sums of a block that the sink has not taken yet.
pub(super) struct Pending {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) rows: Range<usize>,
    pub(super) sums: *const f32,
}

impl Default for Pending {
    fn default() -> Self {
        Pending { row: 0, column: 0, rows: 0..0, sums: std::ptr::null() }
    }
}

impl Pending {
    /// Hands rows to the sink in proportion to the progress, step `i` of `steps`: two by two, and
    /// all that are left at the last step.
    ///
    /// # Safety
    /// `sums` holds a block if there are rows.
    #[inline(always)]
    pub(super) unsafe fn hand_over<S: Lanes>(&mut self, i: usize, steps: usize, sink: &mut impl Sink) {
        let due = if i + 1 >= steps { self.rows.end } else { (self.rows.end * i / (steps - 1)) & !1 };
        if due <= self.rows.start {
            return;
        }
        // SAFETY: guaranteed by the caller; there are no more rows than in a block.
        let rows = unsafe {
            let first = self.sums.add(self.rows.start * PANEL).cast::<[f32; PANEL]>();
            std::slice::from_raw_parts(first, due - self.rows.start)
        };
        sink.take_between::<S>(self.row + self.rows.start, self.column, rows);
        self.rows.start = due;
    }
}

/// A matrix in bytes, with the bytes from row to row (A) or panel to panel (B).
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) stride: usize,
}

/// Rows of A and panels of B to multiply, and their indices.
pub(crate) struct Task<'a> {
    /// The rows of the task only.
    pub(crate) a: Operand<'a>,
    /// All panels.
    pub(crate) b: Operand<'a>,
    /// Depth, in rows of tiles (64 bytes).
    pub(crate) steps: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
}

/// [`gemm::multiply`](crate::cpu::gemm::multiply) in AMX tiles.
#[inline(always)]
pub(in crate::cpu) fn multiply<S: Lanes>(
    a: Rows<'_, bf16>,
    b: Panels<'_, bf16>,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut GemmScratch,
    sink: &mut impl Sink,
) {
    let GemmScratch { padded, sums, .. } = scratch;
    let a = padded_rows(a, &rows, TILE_DEPTH, padded);
    let steps = a.cols / TILE_DEPTH;
    let a = Operand { data: bytes_of(a.data), stride: a.stride * size_of::<bf16>() };
    let b = Operand { data: bytes_of(b.data), stride: b.height * PANEL * size_of::<bf16>() };
    products::<S, Pairs>(Task { a, b, steps, rows, panels }, sums, sink);
}

/// Products of int8. The sink gets the sums as the bits of i32.
#[inline(always)]
pub(in crate::cpu) fn multiply_bytes<S: Lanes>(task: Task<'_>, sums: &mut Vec<f32>, sink: &mut impl Sink) {
    products::<S, Fours>(task, sums, sink);
}

pub(crate) fn bytes_of(values: &[bf16]) -> &[u8] {
    // SAFETY: a bf16 is two bytes without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Steps whose rows of A stay in the first-level cache, 32 KiB of 48, while the panels are read.
const DEEP: usize = 16;

/// AMX products of a task.
///
/// The outer loop is over blocks of rows, the inner loop over panels: a block's rows stay in the
/// first-level cache, and the panels stream in from the second, by loads that do not evict the
/// rows. Rows that are too long for that are cut, and partial sums are stored in memory. The next
/// rows are prefetched meanwhile: the op before has left them in the third-level cache or in
/// another core's, and fetching a block from there takes as long as multiplying it.
#[inline(always)]
fn products<S: Lanes, D: Dots>(task: Task<'_>, sums: &mut Vec<f32>, sink: &mut impl Sink) {
    let Task { a, b, steps, rows, panels } = task;
    assert!(!rows.is_empty() && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW, "A has too few rows");
    let per = steps.div_ceil(steps.div_ceil(DEEP));
    let chunks = steps.div_ceil(per);
    let sums = aligned(sums, if chunks > 1 { panels.len() * SUMS } else { SUMS });
    let base = sums.as_mut_ptr();
    let mut tiles = Tiles::default();
    for block in (0..rows.len()).step_by(ROWS) {
        let own = (rows.len() - block).min(ROWS);
        let both = own > 16;
        tiles.fit(own);
        let mut pending = Pending::default();
        let mut before = base;
        for chunk in 0..chunks {
            let (first, last) = (chunk == 0, chunk + 1 == chunks);
            let depth = chunk * per..((chunk + 1) * per).min(steps);
            let ahead = if last { (block + ROWS) * a.stride } else { block * a.stride + depth.end * ROW };
            for (i, panel) in panels.clone().enumerate() {
                let step = Step {
                    a: a.data[block * a.stride + depth.start * ROW..].as_ptr(),
                    lower: if both { 16 * a.stride } else { 0 },
                    stride: a.stride,
                    b: b.data[panel * b.stride + depth.start * STEP..][..depth.len() * STEP].as_ptr(),
                    at: before,
                    across: ACROSS,
                };
                // Each panel prefetches a share of the next rows.
                let fetched = ROWS * i / panels.len()..ROWS * (i + 1) / panels.len();
                // SAFETY: the pointers are to `own` rows of A, a panel and a block of sums, as the
                // slices above have shown; rows of A reach to the end of the last step. A prefetch
                // may be of any address.
                unsafe {
                    let at = base.add(if chunks > 1 { i * SUMS } else { 0 });
                    match (first, both) {
                        (true, true) => D::first_both(&step),
                        (true, false) => D::first_upper(&step),
                        (false, _) => {
                            store(before, ACROSS, both);
                            load(at, both);
                            if both { D::both(&step, 0) } else { D::upper(&step, 0) }
                        }
                    }
                    before = at;
                    for i in 1..depth.len() {
                        if both {
                            D::both(&step, i)
                        } else {
                            D::upper(&step, i)
                        }
                        for row in fetched.clone() {
                            let next = a.data.as_ptr().wrapping_add(ahead + row * a.stride + i * ROW);
                            _mm_prefetch::<_MM_HINT_T1>(next.cast());
                        }
                        pending.hand_over::<S>(i, depth.len(), sink);
                    }
                    pending.hand_over::<S>(1, 1, sink);
                }
                if last {
                    pending = Pending { row: rows.start + block, column: panel * PANEL, rows: 0..own, sums: before };
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            store(before, ACROSS, both);
            pending.hand_over::<S>(1, 1, sink);
        }
    }
}

/// Computes a task of no more rows than a block and stores the plain sums: columns of B from
/// `column` on, `across` sums from row to row.
#[inline(always)]
pub(crate) fn into(tiles: &mut Tiles, task: Task<'_>, (sums, across): (&mut [f32], usize), column: usize) {
    let Task { a, b, steps, rows, panels } = task;
    assert!((1..=ROWS).contains(&rows.len()) && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW);
    assert!(sums.len() >= (rows.len() - 1) * across + panels.end * PANEL - column);
    let both = rows.len() > 16;
    tiles.fit(rows.len());
    let mut at = sums.as_mut_ptr();
    for panel in panels.clone() {
        let step = Step {
            a: a.data.as_ptr(),
            lower: if both { 16 * a.stride } else { 0 },
            stride: a.stride,
            b: b.data[panel * b.stride..][..steps * STEP].as_ptr(),
            at,
            across: across * size_of::<f32>(),
        };
        // SAFETY: the pointers are to rows, panels and sums, as the slices and assertions have
        // shown. The first panel stores zeros where its own sums will be.
        unsafe {
            if both {
                Pairs::first_both(&step)
            } else {
                Pairs::first_upper(&step)
            }
            for i in 1..steps {
                if both { Pairs::both(&step, i) } else { Pairs::upper(&step, i) }
            }
            at = sums.as_mut_ptr().add(panel * PANEL - column);
        }
    }
    if !panels.is_empty() {
        // SAFETY: as above.
        unsafe { store(at, across * size_of::<f32>(), both) };
    }
}
