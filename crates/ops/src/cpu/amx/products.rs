//! The products of a task. A is read where it is, B from its panel in groups of four bytes. While one block is multiplied, the sums
//! of the one before go to the sink: its activation costs as much as the products, and another part of the core does it.
#![allow(unsafe_code, reason = "tile instructions and the pointers they take")]

use super::dots::{Dots, Pairs, Step, store};
use super::{ACROSS, ROW, ROWS, STEP, SUMS, Tiles};
use crate::cpu::Lanes;
use crate::cpu::gemm::{PANEL, Panels, Room, Sink, TILE_DEPTH, aligned, whole};
use crate::cpu::rows::Rows;
use half::bf16;
use std::ops::Range;

/// A block's sums that the sink has not taken yet.
pub(super) struct Pending {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) rows: Range<usize>,
}

impl Pending {
    /// The next `count` of its rows go to the sink.
    #[inline(always)]
    pub(super) fn hand_over<S: Lanes>(&mut self, count: usize, sums: &[f32], sink: &mut impl Sink) {
        let next = self.rows.start..(self.rows.start + count).min(self.rows.end);
        if next.is_empty() {
            return;
        }
        let (rows, _) = sums.as_chunks::<PANEL>();
        sink.take_rows::<S>(self.row + next.start, self.column, &rows[next.clone()]);
        self.rows.start = next.end;
    }
}

/// Bytes, and how many lie between the beginnings of what is in them.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) stride: usize,
}

/// Rows of A and panels of B, and what they are called.
pub(crate) struct Task<'a> {
    /// The rows, beginning with the first of them.
    pub(crate) a: Operand<'a>,
    /// All panels.
    pub(crate) b: Operand<'a>,
    /// Depth, in rows of tiles.
    pub(crate) steps: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
}

/// [`gemm::multiply`](crate::cpu::gemm::multiply) in tiles.
#[inline(always)]
pub(in crate::cpu) fn multiply<S: Lanes>(
    a: Rows<'_, bf16>,
    b: Panels<'_, bf16>,
    rows: Range<usize>,
    panels: Range<usize>,
    room: &mut Room,
    sink: &mut impl Sink,
) {
    let Room { padded, sums, .. } = room;
    let a = whole(a, &rows, TILE_DEPTH, padded);
    let steps = a.cols / TILE_DEPTH;
    let a = Operand { data: bytes_of(a.data), stride: a.stride * size_of::<bf16>() };
    let b = Operand { data: bytes_of(b.data), stride: b.height * PANEL * size_of::<bf16>() };
    products::<S, Pairs>(Task { a, b, steps, rows, panels }, sums, sink);
}

pub(crate) fn bytes_of(values: &[bf16]) -> &[u8] {
    // SAFETY: bf16 are two bytes without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The products of a task. Sums of bytes go to the sink as the bits of i32.
///
/// Blocks of rows outside, panels inside: a block's rows stay in the first-level cache, and the panels come from the second, one
/// after another as they lie there, by loads that do not drive the rows out.
#[inline(always)]
pub(in crate::cpu) fn products<S: Lanes, D: Dots>(task: Task<'_>, sums: &mut Vec<f32>, sink: &mut impl Sink) {
    let Task { a, b, steps, rows, panels } = task;
    assert!(!rows.is_empty() && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW, "rows that are not there");
    let sums = aligned(sums, SUMS);
    let at = sums.as_mut_ptr();
    let mut tiles = Tiles(0);
    for block in (0..rows.len()).step_by(ROWS) {
        let own = (rows.len() - block).min(ROWS);
        let both = own > 16;
        tiles.fit(own);
        let mut pending = Pending { row: 0, column: 0, rows: 0..0 };
        for panel in panels.clone() {
            let step = Step {
                a: a.data[block * a.stride..].as_ptr(),
                lower: if both { 16 * a.stride } else { 0 },
                stride: a.stride,
                b: b.data[panel * b.stride..][..steps * STEP].as_ptr(),
                at,
                across: ACROSS,
            };
            // SAFETY: `own` rows of A, a panel and a block of sums are where the pointers say, as the slices above have shown;
            // rows of A reach to the end of the last step.
            unsafe {
                if both {
                    D::first_both(&step)
                } else {
                    D::first_upper(&step)
                }
                let each = pending.rows.len().div_ceil((steps - 1).max(1)).next_multiple_of(4);
                for i in 1..steps {
                    if both {
                        D::both(&step, i)
                    } else {
                        D::upper(&step, i)
                    }
                    pending.hand_over::<S>(each, sums, sink);
                }
            }
            pending.hand_over::<S>(ROWS, sums, sink);
            pending = Pending { row: rows.start + block, column: panel * PANEL, rows: 0..own };
        }
        // SAFETY: as above.
        unsafe { store(at, ACROSS, both) };
        pending.hand_over::<S>(ROWS, sums, sink);
    }
}

/// The products of a task of no more rows than a block, as they are: columns of B from `column` on, `across` sums from row to row.
#[inline(always)]
pub(crate) fn into(task: Task<'_>, (sums, across): (&mut [f32], usize), column: usize) {
    let Task { a, b, steps, rows, panels } = task;
    assert!((1..=ROWS).contains(&rows.len()) && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW);
    assert!(sums.len() >= (rows.len() - 1) * across + panels.end * PANEL - column);
    let both = rows.len() > 16;
    let mut tiles = Tiles(0);
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
        // SAFETY: rows, panels and sums are where the pointers say, as the slices and what was asserted have shown. The first
        // panel writes zeros to where its own sums will be.
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
