//! A[m,k] · B with B packed into panels: the product under `linear` and under `attention`.
//!
//! B is kept as panels of [`PANEL`] columns, each panel k rows of consecutive columns: `[n/32][k][32]`, the last panel filled
//! up with zeros. A tile of rows × one panel stays in registers over the whole of k, so B is read with full vectors and A by
//! broadcast, straight from where it is. The panel's width is the same for every instruction set (2 AVX-512, 4 AVX2 or
//! 8 NEON vectors), so that a packed weight does not depend on the path that will read it.
#![allow(
    unsafe_code,
    reason = "the register tile reads and writes through pointers; `multiply` derives them from slices"
)]

use super::Lanes;
use super::elem::{Elem, MAX_WIDTH};
use super::rows::Rows;
use std::ops::Range;

/// Columns of a panel.
pub(crate) const PANEL: usize = 32;

/// Rows of A that one task takes: at k = 384 they and a panel of B are 192 KiB, which every second-level cache holds.
pub(crate) const BLOCK: usize = 96;

/// The largest tile of any instruction set.
const MAX_TILE: usize = 12;

/// B, packed.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a, T> {
    /// `[ceil(n / PANEL)][k][PANEL]`.
    pub(crate) data: &'a [T],
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// Rows from panel to panel: `k`, or more where only a part of each panel's depth is read.
    pub(crate) height: usize,
}

impl<'a, T> Panels<'a, T> {
    /// All of what is packed.
    pub(crate) fn of(data: &'a [T], k: usize, n: usize) -> Self {
        Panels { data, k, n, height: k }
    }

    /// Rows `rows` of every panel.
    pub(crate) fn part(self, rows: Range<usize>) -> Self {
        Panels { data: &self.data[rows.start * PANEL..], k: rows.len(), ..self }
    }

    /// Elements that a reader of the last panel reaches.
    fn reach(&self) -> usize {
        ((self.n.div_ceil(PANEL).max(1) - 1) * self.height + self.k) * PANEL
    }
}

/// Elements that `n` columns of depth `k` take when packed.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    n.div_ceil(PANEL) * k * PANEL
}

/// What one register tile reads and writes.
pub(crate) struct Product<'a, B> {
    a: *const f32,
    a_stride: usize,
    b: &'a [B],
    k: usize,
    tile: *mut f32,
}

/// A `ROWS` × [`PANEL`] tile, `VECS` vectors of columns at a time, with the sums in registers. Returns `ROWS`.
///
/// # Safety
/// `a` reaches `ROWS` rows of `k` at `a_stride`, `b` holds `k · PANEL`, `tile` takes `ROWS · PANEL`; the contract of `Lanes`.
#[inline(always)]
pub(crate) unsafe fn micro<S: Lanes, B: Elem, const ROWS: usize, const VECS: usize>(p: &Product<'_, B>) -> usize {
    let strip = VECS * S::WIDTH;
    let mut col = 0;
    while col < PANEL {
        // SAFETY: all offsets are below the bounds the caller vouched for.
        unsafe {
            let mut acc = [[S::splat(0.0); VECS]; ROWS];
            let mut b = p.b.as_ptr().add(col);
            for k in 0..p.k {
                let mut columns = [S::splat(0.0); VECS];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = B::load::<S>(b.add(v * S::WIDTH));
                }
                for (r, sums) in acc.iter_mut().enumerate() {
                    let a = S::splat(*p.a.add(r * p.a_stride + k));
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = S::fma(a, column, *sum);
                    }
                }
                b = b.add(PANEL);
            }
            for (r, sums) in acc.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    S::store(p.tile.add(r * PANEL + col + v * S::WIDTH), *sum);
                }
            }
        }
        col += strip;
    }
    ROWS
}

/// Takes finished sums. A trait and not a closure, for the reason that [`super::elem::vectors`] gives.
pub(crate) trait Sink {
    /// One row of a tile: [`PANEL`] sums from `column` on, of which those beyond B's last column mean nothing.
    /// Must be `#[inline(always)]`.
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]);
}

/// Multiplies `rows` of A with `panels` of B. `wide` is room for the rows in f32, used unless A is f32 already.
#[inline(always)]
pub(crate) fn multiply<S: Lanes, A: Elem, B: Elem>(
    a: Rows<'_, A>,
    b: Panels<'_, B>,
    rows: Range<usize>,
    panels: Range<usize>,
    wide: &mut Vec<f32>,
    sink: &mut impl Sink,
) {
    let (rows, panels) = (rows.start..rows.end.min(a.rows), panels.start..panels.end.min(b.n.div_ceil(PANEL)));
    if rows.is_empty() || panels.is_empty() || b.k == 0 {
        for row in rows {
            for panel in panels.clone() {
                sink.take::<S>(row, panel * PANEL, &[0.0; PANEL]);
            }
        }
        return;
    }
    assert!(a.cols == b.k && b.data.len() >= b.reach(), "operands do not fit");
    let (base, a_stride) = if A::TYPE == crate::DType::F32 {
        (a.data[rows.start * a.stride..].as_ptr().cast::<f32>(), a.stride)
    } else {
        widen::<S, A>(a, rows.clone(), wide);
        (wide.as_ptr(), b.k)
    };
    assert!(a.data.len() >= (rows.end - 1) * a.stride + a.cols);
    let mut tile = [[0f32; PANEL]; MAX_TILE];
    for panel in panels {
        let b = &b.data[panel * b.height * PANEL..][..b.k * PANEL];
        let mut row = rows.start;
        while row < rows.end {
            let p = Product {
                // SAFETY: row - rows.start rows of a_stride elements lie between `base` and this row, checked above.
                a: unsafe { base.add((row - rows.start) * a_stride) },
                a_stride,
                b,
                k: a.cols,
                tile: tile.as_mut_ptr().cast(),
            };
            // SAFETY: the tile has room for the largest tile's rows; at most `rows.end - row` rows of A are read.
            let done = unsafe { S::tile(rows.end - row, &p) };
            for (r, sums) in tile[..done].iter().enumerate() {
                sink.take::<S>(row + r, panel * PANEL, sums);
            }
            row += done;
        }
    }
}

/// Rows of A in f32, one after another.
#[inline(always)]
fn widen<S: Lanes, A: Elem>(a: Rows<'_, A>, rows: Range<usize>, wide: &mut Vec<f32>) {
    wide.resize(rows.len() * a.cols, 0.0);
    for (r, out) in rows.zip(wide.chunks_exact_mut(a.cols)) {
        copy_widened::<S, A>(a.row(r), out);
    }
}

/// `to` becomes `from` in f32.
#[inline(always)]
pub(crate) fn copy_widened<S: Lanes, A: Elem>(from: &[A], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    let whole = from.len() / S::WIDTH * S::WIDTH;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + WIDTH ≤ the length of both.
        unsafe { S::store(to.as_mut_ptr().add(i), A::load::<S>(from.as_ptr().add(i))) };
        i += S::WIDTH;
    }
    from[whole..].iter().zip(&mut to[whole..]).for_each(|(a, b)| *b = a.wide());
}

const _: () = assert!(PANEL.is_multiple_of(2 * MAX_WIDTH));
