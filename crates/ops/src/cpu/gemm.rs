//! Matrix multiplication (GEMM) for `linear` and `attention`: A[m,k] · B.
//!
//! B is packed into panels of [`PANEL`] columns. A panel is k rows of consecutive columns,
//! `[n/32][k][32]`; the last panel is padded with zeros. In bf16 a panel holds pairs of rows,
//! `[k/2][32][2]`, because bf16 dot product instructions and AMX tiles take pairs, and because a
//! shift and a mask widen the two halves of 32 bits; k is padded with zeros to whole tiles. A tile
//! of rows × one panel stays in registers over the whole of k, so B is read with full vectors and A
//! by broadcast, without a copy. The layout is the same for every instruction set (a panel is 2
//! AVX-512, 4 AVX2 or 8 NEON vectors wide), so a packed weight does not depend on the path that
//! reads it.
#![allow(
    unsafe_code,
    reason = "the register tile reads and writes through pointers; `multiply` derives them from slices"
)]

use super::elem::{Elem, MAX_WIDTH};
use super::rows::Rows;
use super::{Isa, Lanes, amx};
use crate::DType;
use half::bf16;
use std::ops::Range;

/// Columns of a panel.
pub(crate) const PANEL: usize = 32;

/// Rows of A per task: at k = 384 they and a panel of B are 192 KiB, which fits every second-level
/// cache.
pub(crate) const BLOCK: usize = 96;

/// Rows of the largest register tile of any instruction set.
const MAX_TILE: usize = 12;

/// Matrix B, packed into panels.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a, T> {
    /// `[ceil(n / PANEL)][k][PANEL]`.
    pub(crate) data: &'a [T],
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// Rows from panel to panel: `k`, or more if only a part of each panel's depth is read.
    pub(crate) height: usize,
}

impl<'a, T: Elem> Panels<'a, T> {
    /// All panels of a packed matrix.
    pub(crate) fn of(data: &'a [T], k: usize, n: usize) -> Self {
        Panels { data, k, n, height: height::<T>(k) }
    }

    /// Rows `rows` of every panel; in bf16 they must be whole tiles.
    pub(crate) fn part(self, rows: Range<usize>) -> Self {
        debug_assert!(height::<T>(rows.start) == rows.start && height::<T>(rows.len()) == rows.len());
        Panels { data: &self.data[rows.start * PANEL..], k: rows.len(), ..self }
    }

    pub(super) fn panel(&self, i: usize) -> &'a [T] {
        &self.data[i * self.height * PANEL..][..height::<T>(self.k) * PANEL]
    }

    /// Whether `data` holds all panels.
    fn is_complete(&self) -> bool {
        let before = (self.n.div_ceil(PANEL).max(1) - 1) * self.height;
        self.data.len() >= (before + height::<T>(self.k)) * PANEL
    }
}

/// Depth of a tile of bf16.
pub(crate) const TILE_DEPTH: usize = 32;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Rows of a panel: `k`, padded if the format packs rows in pairs.
fn height<T: Elem>(k: usize) -> usize {
    if T::TYPE == DType::BF16 { k.next_multiple_of(TILE_DEPTH) } else { k }
}

/// Elements of `n` packed columns of depth `k`.
pub(crate) fn packed_len<T: Elem>(k: usize, n: usize) -> usize {
    n.div_ceil(PANEL) * panel_len::<T>(k)
}

/// Elements of one panel.
pub(crate) fn panel_len<T: Elem>(k: usize) -> usize {
    height::<T>(k) * PANEL
}

/// Index of row `row` of column `column` in its panel.
#[inline(always)]
pub(crate) fn place<T: Elem>(row: usize, column: usize) -> usize {
    if T::TYPE == DType::BF16 { (row / 2 * PANEL + column) * 2 + row % 2 } else { row * PANEL + column }
}

/// Scratch buffers that products reuse from call to call, and the instruction set they use.
#[derive(Default)]
pub(crate) struct GemmScratch {
    pub(crate) isa: Isa,
    /// Whether to multiply f32 as sums of three bf16 in AMX tiles (bf16x3).
    pub(crate) bf16x3: bool,
    /// Rows of A widened to f32, if A is not f32.
    wide: Vec<f32>,
    /// Rows of A in bf16, if A does not end with a whole pair or tile, or is f32 split in three
    /// (bf16x3).
    pub(super) padded: Vec<bf16>,
    /// Panels of B, split into three bf16 (bf16x3).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has AMX"))]
    pub(super) split_b: Vec<bf16>,
    /// Sums of AMX tiles.
    pub(crate) sums: Vec<f32>,
}

/// Operands of one register tile.
pub(crate) struct Product<'a, A, B> {
    a: *const A,
    a_stride: usize,
    b: &'a [B],
    k: usize,
    tile: *mut f32,
}

/// Microkernel: computes a `ROWS` × [`PANEL`] tile, `VECS` vectors of columns at a time, with the
/// sums in registers. Returns `ROWS`.
///
/// # Safety
/// `a` points to `ROWS` rows of `k` elements at `a_stride`, `b` is a panel of depth `k`, `tile`
/// holds `ROWS · PANEL`; the contract of `Lanes`.
#[inline(always)]
pub(crate) unsafe fn micro<S: Lanes, B: Elem, const ROWS: usize, const VECS: usize>(p: &Product<'_, f32, B>) -> usize {
    let strip = VECS * S::WIDTH;
    let mut col = 0;
    while col < PANEL {
        // SAFETY: all offsets are below the bounds that the caller guarantees.
        unsafe {
            let mut acc = [[S::splat(0.0); VECS]; ROWS];
            let mut b = p.b.as_ptr().add(place::<B>(0, col));
            for k in 0..p.k {
                let mut columns = [S::splat(0.0); VECS];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = if B::TYPE != DType::BF16 {
                        B::load::<S>(b.add(v * S::WIDTH))
                    } else if k % 2 == 0 {
                        S::load_even(b.add(2 * v * S::WIDTH).cast())
                    } else {
                        S::load_odd(b.add(2 * v * S::WIDTH).cast())
                    };
                }
                for (r, sums) in acc.iter_mut().enumerate() {
                    let a = S::splat(*p.a.add(r * p.a_stride + k));
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = S::fma(a, column, *sum);
                    }
                }
                b = b.add(match (B::TYPE, k % 2) {
                    (DType::BF16, 0) => 0,
                    (DType::BF16, _) => 2 * PANEL,
                    _ => PANEL,
                });
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

/// [`micro`] with bf16 dot product instructions, which take pairs.
///
/// # Safety
/// As for [`micro`], with an even `k`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn dot_micro<S: Lanes, const ROWS: usize, const VECS: usize>(p: &Product<'_, bf16, bf16>) -> usize {
    let mut col = 0;
    while col < PANEL {
        // SAFETY: all offsets are below the bounds that the caller guarantees.
        unsafe {
            let mut acc = [[S::splat(0.0); VECS]; ROWS];
            let mut b = p.b.as_ptr().add(2 * col);
            for pair in 0..p.k / 2 {
                for (r, sums) in acc.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = S::dot(*sum, p.a.add(r * p.a_stride + 2 * pair), b.add(2 * v * S::WIDTH));
                    }
                }
                b = b.add(2 * PANEL);
            }
            for (r, sums) in acc.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    S::store(p.tile.add(r * PANEL + col + v * S::WIDTH), *sum);
                }
            }
        }
        col += VECS * S::WIDTH;
    }
    ROWS
}

/// Consumer of finished sums. A trait and not a closure, for the reason given at
/// [`super::elem::vectors`].
pub(crate) trait Sink {
    /// Takes one row of a tile: [`PANEL`] sums from `column` on. Sums beyond B's last column are
    /// meaningless. Must be `#[inline(always)]`.
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]);

    /// Takes several rows from `row` on. Must be `#[inline(always)]`.
    #[inline(always)]
    fn take_rows<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        for (r, sums) in rows.iter().enumerate() {
            self.take::<S>(row + r, column, sums);
        }
    }

    /// Like [`Sink::take_rows`], called between two steps of a product: there an implementation may
    /// use more code to save instructions. Must be `#[inline(always)]`.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMX uses it"))]
    fn take_between<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        self.take_rows::<S>(row, column, rows);
    }
}

/// Multiplies `rows` of A by `panels` of B.
#[inline(always)]
pub(crate) fn multiply<S: Lanes, A: Elem, B: Elem>(
    a: Rows<'_, A>,
    b: Panels<'_, B>,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut GemmScratch,
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
    assert!(a.cols == b.k && b.is_complete(), "A and B differ in depth, or B lacks panels");
    assert!(a.data.len() >= (rows.end - 1) * a.stride + a.cols);
    // Runs `$tile` on all panels, with the rows of A at `$a`. A macro for the reason given at
    // `vectors`.
    macro_rules! by_tiles {
        ($a:expr, $a_stride:expr, $k:expr, $b:expr, $tile:path) => {{
            let (base, a_stride, mut tile) = ($a, $a_stride, [[0f32; PANEL]; MAX_TILE]);
            let last = panels.end - 1;
            for panel in panels {
                let mut row = rows.start;
                // Prefetch the next panel while these rows are multiplied by this one: with few
                // rows, loading a panel takes as long as multiplying by it.
                let next = $b.panel(last.min(panel + 1));
                let lines = if panel == last { 0 } else { size_of_val(next).div_ceil(LINE) };
                let mut fetched = 0;
                while row < rows.end {
                    let p = Product {
                        // SAFETY: row - rows.start rows of a_stride elements lie between `base` and
                        // this row.
                        a: unsafe { base.add((row - rows.start) * a_stride) },
                        a_stride,
                        b: $b.panel(panel),
                        k: $k,
                        tile: tile.as_mut_ptr().cast(),
                    };
                    // SAFETY: `tile` holds the rows of the largest register tile; at most `rows.end
                    // - row` rows of A are read.
                    let done = unsafe { $tile(rows.end - row, &p) };
                    sink.take_rows::<S>(row, panel * PANEL, &tile[..done]);
                    row += done;
                    let due = lines * (row - rows.start) / rows.len();
                    while fetched < due {
                        S::fetch(next.as_ptr().cast::<u8>().wrapping_add(fetched * LINE));
                        fetched += 1;
                    }
                }
            }
        }};
    }
    if S::DOTS
        && let (Some(data), Some(pairs)) = (as_bf16(a.data), as_bf16(b.data))
    {
        let b = Panels { data: pairs, k: b.k, n: b.n, height: b.height };
        let a = Rows { data, rows: a.rows, cols: a.cols, stride: a.stride };
        if scratch.isa == Isa::Amx {
            return amx::multiply::<S>(a, b, rows, panels, scratch, sink);
        }
        let a = padded_rows(a, &rows, 2, &mut scratch.padded);
        return by_tiles!(a.data.as_ptr(), a.stride, a.cols, b, S::dot_tile);
    }
    if scratch.bf16x3
        && let (Some(data), Some(floats)) = (as_f32(a.data), as_f32(b.data))
    {
        let b = Panels { data: floats, k: b.k, n: b.n, height: b.height };
        let a = Rows { data, rows: a.rows, cols: a.cols, stride: a.stride };
        return amx::bf16x3::multiply::<S>(a, b, rows, panels, scratch, sink);
    }
    if A::TYPE == DType::F32 {
        let base = a.data[rows.start * a.stride..].as_ptr().cast::<f32>();
        return by_tiles!(base, a.stride, b.k, b, S::tile);
    }
    widen::<S, A>(a, rows.clone(), &mut scratch.wide);
    by_tiles!(scratch.wide.as_ptr(), b.k, b.k, b, S::tile)
}

/// Casts the slice if its elements are f32.
pub(crate) fn as_f32<T: Elem>(values: &[T]) -> Option<&[f32]> {
    // SAFETY: only f32 has `TYPE` F32.
    (T::TYPE == DType::F32).then(|| unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
}

/// Casts the slice if its elements are bf16.
fn as_bf16<T: Elem>(values: &[T]) -> Option<&[bf16]> {
    // SAFETY: only bf16 has `TYPE` BF16.
    (T::TYPE == DType::BF16).then(|| unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
}

/// `rows` of A, padded with zeros to a multiple of `step`. Copies them only if they are not such a
/// multiple, or if AMX tiles would read rows that cross cache lines: reading every row twice costs
/// more than the copy.
pub(crate) fn padded_rows<'a>(
    a: Rows<'a, bf16>,
    rows: &Range<usize>,
    step: usize,
    padded: &'a mut Vec<bf16>,
) -> Rows<'a, bf16> {
    let data = &a.data[rows.start * a.stride..];
    let is_aligned = data.as_ptr().align_offset(LINE) == 0 && a.stride.is_multiple_of(TILE_DEPTH);
    if a.cols.is_multiple_of(step) && (step < TILE_DEPTH || is_aligned) {
        return Rows { data, rows: rows.len(), ..a };
    }
    let cols = a.cols.next_multiple_of(step);
    // One cache line more per row spreads the rows of a tile over more cache sets.
    let stride = cols + step;
    let copy = aligned(padded, rows.len() * stride);
    for (row, out) in rows.clone().zip(copy.chunks_exact_mut(stride)) {
        out[..a.cols].copy_from_slice(a.row(row));
        out[a.cols..].fill(bf16::ZERO);
    }
    Rows { data: copy, rows: rows.len(), cols, stride }
}

/// The first `len` elements of `buffer` that start on a cache line; `buffer` grows as needed. Their
/// values are unspecified.
pub(crate) fn aligned<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    buffer.resize(buffer.len().max(len + LINE / size_of::<T>()), T::default());
    let first = buffer.as_ptr().align_offset(LINE);
    &mut buffer[first..first + len]
}

/// Copies rows of A to `wide` as f32, one after another.
#[inline(always)]
fn widen<S: Lanes, A: Elem>(a: Rows<'_, A>, rows: Range<usize>, wide: &mut Vec<f32>) {
    wide.resize(rows.len() * a.cols, 0.0);
    for (r, out) in rows.zip(wide.chunks_exact_mut(a.cols)) {
        copy_widened::<S, A>(a.row(r), out);
    }
}

/// Copies `from` to `to` as f32.
#[inline(always)]
pub(crate) fn copy_widened<S: Lanes, A: Elem>(from: &[A], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    let vectorised = from.len() / S::WIDTH * S::WIDTH;
    let mut i = 0;
    while i < vectorised {
        // SAFETY: i + WIDTH ≤ the length of both.
        unsafe { S::store(to.as_mut_ptr().add(i), A::load::<S>(from.as_ptr().add(i))) };
        i += S::WIDTH;
    }
    from[vectorised..].iter().zip(&mut to[vectorised..]).for_each(|(a, b)| *b = a.wide());
}

const _: () = assert!(PANEL.is_multiple_of(2 * MAX_WIDTH));

#[cfg(test)]
mod tests {
    use super::*;

    /// The padding is multiplied by zeros of B, but a stale NaN from an earlier call would survive
    /// that.
    #[test]
    fn padding_is_zeroed_over_stale_data() {
        let data: Vec<bf16> = (1..=3 * 70).map(|i| bf16::from_f32(i as f32)).collect();
        let a = Rows { data: &data, rows: 3, cols: 70, stride: 70 };
        for step in [4, TILE_DEPTH] {
            let mut padded = vec![bf16::NAN; 1000];
            let result = padded_rows(a, &(1..3), step, &mut padded);
            assert_eq!((result.rows, result.cols), (2, 70usize.next_multiple_of(step)));
            for (row, padded) in [1, 2].into_iter().zip(result.iter()) {
                assert_eq!(padded[..70], *a.row(row));
                assert!(padded[70..].iter().all(|v| *v == bf16::ZERO), "{padded:?}");
            }
        }
    }
}
