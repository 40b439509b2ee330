//! bf16x3: f32 matrix products in AMX tiles of bf16. An f32 is exactly the sum
//! h + m + l of three bf16, each 2⁻⁸ of the one before. Of the nine products of two such sums, the
//! three smallest are below the precision of f32. The other six take 6/16 of the time of f32
//! multiply-adds.
//!
//! Rows of A are split once per task. A panel of B is split while the panel before it is
//! multiplied, in the vector units that AMX leaves idle. Both are split for [`DEPTH`] of k at a
//! time, so that they stay in the second-level cache; for a larger k, partial sums are stored in
//! memory.
//!
//! An infinity becomes NaN, because it is subtracted from itself.
#![allow(unsafe_code, reason = "tile instructions, SIMD lanes and the pointers they take")]

use super::dots::{load, store};
use super::products::Pending;
use super::{ACROSS, ROW, ROWS, STEP, SUMS, Tiles};
use crate::cpu::Lanes;
use crate::cpu::gemm::{GemmScratch, PANEL, Panels, Sink, TILE_DEPTH, aligned};
use crate::cpu::rows::Rows;
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Depth that is split at a time.
pub(crate) const DEPTH: usize = 384;

/// Elements from row to row of a component of A: a cache line more than the depth spreads the rows
/// of a tile over more cache sets.
const STRIDE: usize = DEPTH + TILE_DEPTH;

/// Elements of one component (h, m or l) of a panel.
const COMPONENT: usize = DEPTH * PANEL;

/// Vectors of pairs in one step of a panel: two for each pair of rows.
const UNITS: usize = TILE_DEPTH / 2 * 2;

/// [`gemm::multiply`](crate::cpu::gemm::multiply) of f32 in AMX tiles.
#[inline(always)]
pub(in crate::cpu) fn multiply<S: Lanes>(
    a: Rows<'_, f32>,
    b: Panels<'_, f32>,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut GemmScratch,
    sink: &mut impl Sink,
) {
    let (blocks, chunks) = (rows.len().div_ceil(ROWS), b.k.div_ceil(DEPTH));
    let GemmScratch { padded, split_b, sums, .. } = scratch;
    let (mut current, mut next) = aligned(split_b, 6 * COMPONENT).split_at_mut(3 * COMPONENT);
    let parts = aligned(padded, 3 * blocks * ROWS * STRIDE);
    // Partial sums that are stored need a slot each.
    let slots = if chunks > 1 { panels.len() * blocks } else { 1 };
    let sums = aligned(sums, slots * SUMS);
    let base = sums.as_mut_ptr();

    let depth = |chunk: usize| chunk * DEPTH..((chunk + 1) * DEPTH).min(b.k);
    let mut tiles = Tiles::default();
    let mut split = Split { from: b.panel(panels.start), depth: depth(0), unit: 0 };
    // SAFETY: AMX implies AVX-512 with BW; `Split` and `split_row` check that their reads and
    // writes are in the slices.
    unsafe { split.advance(usize::MAX, current) };
    let mut pending = Pending::default();
    for chunk in 0..chunks {
        let range = depth(chunk);
        let steps = range.len().div_ceil(TILE_DEPTH);
        for (r, row) in rows.clone().enumerate() {
            // SAFETY: as above.
            unsafe { split_row(&a.row(row)[range.clone()], &mut parts[r * STRIDE..], blocks * ROWS * STRIDE) };
        }
        for panel in panels.clone() {
            let following = match (panel + 1 < panels.end, chunk + 1 < chunks) {
                (true, _) => Some((panel + 1, range.clone())),
                (false, true) => Some((panels.start, depth(chunk + 1))),
                (false, false) => None,
            };
            let mut split =
                following.map(|(panel, depth)| Split { from: b.panel(panel), depth, unit: 0 }).unwrap_or_default();
            let per_step = (split.units().div_ceil(blocks * steps)).max(1);
            for block in 0..blocks {
                let block_rows = (rows.len() - block * ROWS).min(ROWS);
                tiles.fit(block_rows);
                let slot = if chunks > 1 { (panel - panels.start) * blocks + block } else { 0 };
                // SAFETY: `sums` has `slots` slots.
                let at = unsafe { base.add(slot * SUMS) };
                let step = Step {
                    a: parts[block * ROWS * STRIDE..].as_ptr(),
                    component: blocks * ROWS * STRIDE,
                    b: current.as_ptr(),
                    both: block_rows > 16,
                };
                // SAFETY: the pointers are to a block of rows, a panel and a block of sums; `steps`
                // fit DEPTH, and the space beyond the end of a row or panel is filled with zeros.
                unsafe {
                    step.begin(if chunk > 0 { Some(at) } else { None });
                    for i in 0..steps {
                        step.multiply_step(i);
                        split.advance(per_step, next);
                        pending.hand_over::<S>(i, steps, sink);
                    }
                    pending.hand_over::<S>(1, 1, sink);
                    store(at, ACROSS, step.both);
                }
                if chunk + 1 == chunks {
                    let row = rows.start + block * ROWS;
                    pending = Pending { row, column: panel * PANEL, rows: 0..block_rows, sums: at };
                }
            }
            // SAFETY: as above.
            unsafe { split.advance(usize::MAX, next) };
            std::mem::swap(&mut current, &mut next);
        }
    }
    // SAFETY: `sums` is a block, and no tile is written to it any more.
    unsafe { pending.hand_over::<S>(1, 1, sink) };
}

/// Splits x = h + m + l, each a bf16 in the upper half of 32 bits. h and m are rounded, ties away
/// from zero, which leaves 16 bits of x and then 7. NaN stays in l.
#[inline(always)]
unsafe fn split(x: __m512) -> [__m512i; 3] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000_u32 as i32));
        let h = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
        let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(h));
        let m = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), upper);
        let l = _mm512_sub_ps(rest, _mm512_castsi512_ps(m));
        [h, m, _mm512_castps_si512(l)]
    }
}

/// Splits a row into its components, `distance` elements from each other, padded with zeros to
/// whole tiles.
#[inline(always)]
unsafe fn split_row(row: &[f32], out: &mut [bf16], distance: usize) {
    assert!(row.len() <= DEPTH && out.len() >= 2 * distance + DEPTH);
    // SAFETY: `count` elements are read at each index; 32 are written, within DEPTH; the caller has
    // AVX-512.
    unsafe {
        // Selects the upper words of both vectors, one after another.
        let order: [i16; 32] = std::array::from_fn(|i| 2 * i as i16 + 1);
        let order = _mm512_loadu_si512(order.as_ptr().cast());
        let mut i = 0;
        while i < row.len() {
            let count = (row.len() - i).min(TILE_DEPTH);
            let mask = if count == TILE_DEPTH { u32::MAX } else { (1 << count) - 1 };
            let from = row.as_ptr().add(i);
            let x = split(_mm512_maskz_loadu_ps(mask as u16, from));
            let y = split(_mm512_maskz_loadu_ps((mask >> 16) as u16, from.wrapping_add(16)));
            for (component, (x, y)) in x.into_iter().zip(y).enumerate() {
                let pairs = _mm512_permutex2var_epi16(x, order, y);
                _mm512_store_si512(out.as_mut_ptr().add(component * distance + i).cast(), pairs);
            }
            i += TILE_DEPTH;
        }
    }
}

/// A part of a panel's depth while it is split into components, `[k/2][32][2]` each; rows beyond
/// its end are zeros.
#[derive(Default)]
struct Split<'a> {
    from: &'a [f32],
    depth: Range<usize>,
    /// Index of the next vector of pairs.
    unit: usize,
}

impl Split<'_> {
    fn units(&self) -> usize {
        self.depth.len().div_ceil(TILE_DEPTH) * UNITS
    }

    /// Splits `count` units more, or all that are left.
    #[inline(always)]
    unsafe fn advance(&mut self, count: usize, out: &mut [bf16]) {
        let end = self.units().min(self.unit.saturating_add(count));
        assert!(end * PANEL <= COMPONENT && out.len() == 3 * COMPONENT && self.from.len() >= self.depth.end * PANEL);
        while self.unit < end {
            let (row, column) = (self.depth.start + self.unit / 2 * 2, self.unit % 2 * (PANEL / 2));
            // SAFETY: rows below the depth's end lie in the panel, and unit `end` − 1 in each
            // component; the caller has AVX-512.
            unsafe {
                let line = |row: usize| match row < self.depth.end {
                    true => self.from.as_ptr().add(row * PANEL + column),
                    false => ZEROS.as_ptr(),
                };
                let (x, y) = (_mm512_loadu_ps(line(row)), _mm512_loadu_ps(line(row + 1)));
                for (component, (x, y)) in split(x).into_iter().zip(split(y)).enumerate() {
                    // The first of a pair is in the lower half. The lower bits of l and y are zero.
                    let pairs =
                        _mm512_or_si512(_mm512_srli_epi32::<16>(x), _mm512_and_si512(y, _mm512_set1_epi32(-65536)));
                    _mm512_store_si512(out.as_mut_ptr().add(component * COMPONENT + self.unit * PANEL).cast(), pairs);
                }
            }
            self.unit += 1;
        }
    }
}

static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// Operands of a block's steps, as in [`super::dots`], with three components each.
struct Step {
    a: *const bf16,
    /// Elements from component to component of A.
    component: usize,
    b: *const bf16,
    /// Whether the block has more than sixteen rows.
    both: bool,
}

impl Step {
    /// Starts with zero sums, or loads the partial sums of the depth before.
    ///
    /// # Safety
    /// The tiles are configured for the block's rows, and `from` holds a block.
    #[inline(always)]
    unsafe fn begin(&self, from: Option<*mut f32>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match from {
                None => {
                    asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem))
                }
                Some(from) => load(from, self.both),
            }
        }
    }

    /// The six products of step `i`, smallest first, in an order in which each product reuses an
    /// operand of the one before.
    ///
    /// # Safety
    /// Step `i` must lie in A and B, and the tiles must be configured for these rows.
    #[inline(always)]
    unsafe fn multiply_step(&self, i: usize) {
        const H: usize = 0;
        const M: usize = 1;
        const L: usize = 2;
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.rows(H, i);
            self.columns(L, i);
            self.dots();
            self.columns(M, i);
            self.dots();
            self.rows(M, i);
            self.dots();
            self.columns(H, i);
            self.dots();
            self.rows(L, i);
            self.dots();
            self.rows(H, i);
            self.dots();
        }
    }

    #[inline(always)]
    unsafe fn rows(&self, component: usize, i: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let a = self.a.add(component * self.component).byte_add(i * ROW);
            asm!("tileloadd tmm4, [{a} + {stride}*1]", a = in(reg) a, stride = in(reg) STRIDE * 2,
                 options(nostack, preserves_flags, readonly));
            if self.both {
                asm!("tileloadd tmm5, [{a} + {stride}*1]", a = in(reg) a.add(16 * STRIDE), stride = in(reg) STRIDE * 2,
                     options(nostack, preserves_flags, readonly));
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(&self, component: usize, i: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let b = self.b.add(component * COMPONENT).byte_add(i * STEP);
            asm!("tileloadd tmm6, [{b} + {row}*1]", "tileloadd tmm7, [{b} + {row}*1 + 64]", b = in(reg) b,
                 row = in(reg) PANEL * 4, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    unsafe fn dots(&self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            asm!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7", options(nostack, preserves_flags, nomem));
            if self.both {
                asm!(
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    options(nostack, preserves_flags, nomem)
                );
            }
        }
    }
}
