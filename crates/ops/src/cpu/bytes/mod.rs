//! int8 matrix multiplication, A[m,k] · B with sums in i32: used by `linear` for int8 weights.
//!
//! B has a scale per column, which is an output of the layer, and A a scale per row, which is a
//! token: both are the largest element divided by 127 (see [`codes`] for rows where that is too
//! coarse). So quantization is symmetric, zero stays zero, and no code is −128, with which several
//! instruction sets would overflow. B is packed into panels of [`PANEL`] columns with four
//! consecutive elements of a column adjacent, `[n/32][k/4][32][4]`, because int8 dot product
//! instructions of every architecture and AMX tiles take them so; k is padded with zeros to whole
//! tiles. Integer sums are exact in any order, so every instruction set gives the same result.
#![allow(
    unsafe_code,
    reason = "the register tile reads and writes through pointers; `multiply` derives them from slices"
)]

mod codes;

pub(crate) use codes::Codes;

use crate::cpu::amx::{self, Operand};
use crate::cpu::gemm::{PANEL, Sink};
use crate::cpu::ints::{Ints, LINE};
use crate::cpu::{IntKernel, Isa, Lanes};
use crate::threads;
use codes::{Part, Row, largest, quantize};
use std::fmt;
use std::ops::Range;

/// The largest depth whose sums always fit i32: 127 · 127 per element, and 127 · 128 with offset
/// bytes.
pub(crate) const MAX_DEPTH: usize = 1 << 17;

/// Elements of k in a row of an AMX tile; rows are padded to multiples of it.
const DEPTH: usize = 64;

/// Elements of k per step on the other paths: four groups of four.
const STEP: usize = 16;

/// A cache line, aligned like a row of an AMX tile.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([i8; LINE]);

fn bytes_of(lines: &[Line]) -> &[i8] {
    // SAFETY: lines are arrays of bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn bytes_of_mut(lines: &mut [Line]) -> &mut [i8] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

/// Matrix B in int8, packed into panels.
pub(crate) struct Bytes {
    lines: Vec<Line>,
    /// Scale per column, without the padding of the last panel.
    scales: Vec<f32>,
    k: usize,
}

impl Bytes {
    /// Packs `n` columns of depth `k`, which `read` returns in f32. Calls `release` now and then,
    /// when the columns so far have been read and their source is no longer needed.
    pub(crate) fn pack(n: usize, k: usize, read: &(dyn Fn(usize, &mut [f32]) + Sync), release: &dyn Fn()) -> Bytes {
        let len = panel_len(k);
        let mut lines = vec![Line([0; LINE]); n.div_ceil(PANEL) * len / LINE];
        let mut scales = vec![0.0; n];
        let panels_per_pass = (crate::quant::PASS_BYTES / len.max(1)).max(1);
        let panels = bytes_of_mut(&mut lines).chunks_mut((panels_per_pass * len).max(1));
        for (i, (panels, scales)) in panels.zip(scales.chunks_mut(panels_per_pass * PANEL)).enumerate() {
            let mut each: Vec<_> = panels.chunks_mut(len).zip(scales.chunks_mut(PANEL)).collect();
            // A few panels per task share one column buffer.
            let per_task = each.len().div_ceil(8 * threads::count());
            threads::for_each_chunk_mut(&mut each, per_task, |task, each| {
                let (mut column, mut codes) = (vec![0f32; k], vec![0i8; k]);
                for (panel, (out, scales)) in each.iter_mut().enumerate() {
                    for (c, scale) in scales.iter_mut().enumerate() {
                        read((i * panels_per_pass + task * per_task + panel) * PANEL + c, &mut column);
                        let largest = largest(&column);
                        quantize(&column, largest, &mut codes);
                        *scale = largest / 127.0;
                        codes.iter().enumerate().for_each(|(row, code)| out[place(row, c)] = *code);
                    }
                }
            });
            release();
        }
        Bytes { lines, scales, k }
    }

    /// Bytes of `n` packed columns of depth `k`.
    pub(crate) fn size_of(n: usize, k: usize) -> usize {
        n.div_ceil(PANEL).saturating_mul(panel_len(k)).saturating_add(n * size_of::<f32>())
    }

    /// Column `i` in f32.
    pub(crate) fn column(&self, i: usize, out: &mut [f32]) {
        let panel = &bytes_of(&self.lines)[i / PANEL * panel_len(self.k)..];
        for (row, v) in out.iter_mut().enumerate() {
            *v = f32::from(panel[place(row, i % PANEL)]) * self.scales[i];
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} × {})", self.scales.len(), self.k)
    }
}

/// Bytes of a panel.
fn panel_len(k: usize) -> usize {
    k.next_multiple_of(DEPTH).saturating_mul(PANEL)
}

/// Index of row `row` of column `column` in its panel.
fn place(row: usize, column: usize) -> usize {
    (row / 4 * PANEL + column) * 4 + row % 4
}

/// Multiplies rows of A by panels of B.
pub(crate) struct Task<'a, K> {
    pub(crate) isa: Isa,
    pub(crate) x: &'a Codes,
    pub(crate) w: &'a Bytes,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
    /// Scratch for the sums of AMX tiles.
    pub(crate) sums: &'a mut Vec<f32>,
    pub(crate) sink: K,
}

impl<K: Sink> IntKernel for Task<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Ints>(self) {
        let Task { isa, x, w, rows, panels, sums, sink } = self;
        let rows = rows.start..rows.end.min(x.rows.len());
        let panels = panels.start..panels.end.min(w.scales.len().div_ceil(PANEL));
        if rows.is_empty() || panels.is_empty() {
            return;
        }
        assert!(x.k == w.k, "A and B do not have the same depth");
        let (stride, depth) = (Codes::stride(x.k), x.k.next_multiple_of(DEPTH));
        let (a, b) = (bytes_of(&x.lines), bytes_of(&w.lines));
        assert!(a.len() >= rows.end * stride && b.len() >= panels.end * panel_len(w.k));
        if isa == Isa::Amx {
            let a = Operand { data: unsigned(&a[rows.start * stride..]), stride };
            let b = Operand { data: unsigned(b), stride: panel_len(w.k) };
            let task = amx::Task { a, b, steps: depth / DEPTH, rows, panels };
            let mut sink = Scaled::<_, true> { rows: &x.rows, columns: &w.scales, first: [0.0; PANEL], sink };
            return amx::multiply_bytes::<S::L>(task, sums, &mut sink);
        }
        let mut sink = Scaled::<_, false> { rows: &x.rows, columns: &w.scales, first: [0.0; PANEL], sink };
        let mut tile = [[0f32; PANEL]; MAX_TILE];
        for panel in panels {
            let b = b[panel * panel_len(w.k)..][..panel_len(w.k)].as_ptr();
            let mut row = rows.start;
            while row < rows.end {
                let a = a[row * stride..].as_ptr();
                let p = Product { a, stride, rows: &x.rows[row..], b, depth, tile: tile.as_mut_ptr().cast() };
                // SAFETY: at most `rows.end - row` rows of A are read, all of `depth`; the panel is
                // complete.
                let done = unsafe { p.tile::<S>(rows.end - row) };
                sink.take_rows::<S::L>(row, panel * PANEL, &tile[..done]);
                row += done;
            }
        }
    }
}

fn unsigned(bytes: &[i8]) -> &[u8] {
    // SAFETY: u8 and i8 have the same layout.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

/// Rows of the largest register tile of any instruction set.
const MAX_TILE: usize = 8;

/// Operands of one register tile.
struct Product<'a> {
    a: *const i8,
    stride: usize,
    /// Description of the rows.
    rows: &'a [Row],
    b: *const i8,
    depth: usize,
    tile: *mut f32,
}

impl Product<'_> {
    /// Multiplies as many of `left` rows as a register tile holds, and returns their number.
    /// Sixteen vector registers hold four rows of one vector beside four lines of B and their
    /// absolute values; 32 hold eight rows of two vectors.
    ///
    /// # Safety
    /// As for [`Product::pairs`], with `left` rows.
    #[inline(always)]
    unsafe fn tile<S: Ints>(&self, left: usize) -> usize {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (left, S::L::WIDTH) {
                (4.., 8) => self.pairs::<S, 2, 1>(),
                (2.., 8) => self.pairs::<S, 1, 1>(),
                (_, 8) => self.one::<S, 1>(),
                (8.., _) => self.pairs::<S, 4, 2>(),
                (4.., _) => self.pairs::<S, 2, 2>(),
                (2.., _) => self.pairs::<S, 1, 2>(),
                _ => self.one::<S, 2>(),
            }
        }
    }

    /// Computes 2 · `PAIRS` rows × [`PANEL`] sums, `VECS` vectors of columns at a time. Returns the
    /// number of rows.
    ///
    /// # Safety
    /// `a` points to that many rows of `depth` at `stride`, and `rows` has as many; `b` is a panel
    /// of `depth`, which is a multiple of the step; `tile` holds the sums; the contract of `Ints`.
    #[inline(always)]
    unsafe fn pairs<S: Ints, const PAIRS: usize, const VECS: usize>(&self) -> usize {
        for column in (0..PANEL).step_by(VECS * S::L::WIDTH) {
            // SAFETY: all offsets are below the bounds that the caller guarantees.
            unsafe {
                let mut sums = [[S::two(S::splat(0), S::splat(0)); VECS]; PAIRS];
                for (pair, sums) in sums.iter_mut().enumerate() {
                    *sums = [S::two(self.start::<S>(2 * pair), self.start::<S>(2 * pair + 1)); VECS];
                }
                for k in (0..self.depth).step_by(STEP) {
                    let lines = self.lines::<S, VECS>(k, column);
                    for (pair, sums) in sums.iter_mut().enumerate() {
                        let a = self.a.add(2 * pair * self.stride + k);
                        for (sums, lines) in sums.iter_mut().zip(&lines) {
                            *sums = S::dot_two(8, *sums, lines, [a, a.add(self.stride)]);
                        }
                    }
                }
                for (pair, sums) in sums.iter().enumerate() {
                    for (v, sums) in sums.iter().enumerate() {
                        let [first, second] = S::separate(*sums);
                        self.put::<S>(2 * pair, column + v * S::L::WIDTH, first);
                        self.put::<S>(2 * pair + 1, column + v * S::L::WIDTH, second);
                    }
                }
            }
        }
        2 * PAIRS
    }

    /// [`Product::pairs`] for one row.
    ///
    /// # Safety
    /// As for [`Product::pairs`].
    #[inline(always)]
    unsafe fn one<S: Ints, const VECS: usize>(&self) -> usize {
        for column in (0..PANEL).step_by(VECS * S::L::WIDTH) {
            // SAFETY: all offsets are below the bounds that the caller guarantees.
            unsafe {
                let mut sums = [self.start::<S>(0); VECS];
                for k in (0..self.depth).step_by(STEP) {
                    for (sum, lines) in sums.iter_mut().zip(self.lines::<S, VECS>(k, column)) {
                        *sum = S::dot(8, *sum, &lines, self.a.add(k));
                    }
                }
                for (v, sum) in sums.iter().enumerate() {
                    self.put::<S>(0, column + v * S::L::WIDTH, *sum);
                }
            }
        }
        1
    }

    /// Loads a step's lines of B, offset to unsigned bytes if the instructions need that.
    ///
    /// # Safety
    /// The step and the columns lie in the panel; the contract of `Ints`.
    #[inline(always)]
    unsafe fn lines<S: Ints, const VECS: usize>(&self, k: usize, column: usize) -> [[S::B; STEP / 4]; VECS] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let raise = S::splat_byte(S::RAISE);
            let mut lines = [[raise; STEP / 4]; VECS];
            for (v, lines) in lines.iter_mut().enumerate() {
                for (group, line) in lines.iter_mut().enumerate() {
                    let at = place(k + 4 * group, column + v * S::L::WIDTH);
                    *line = S::bytes(self.b.add(at).cast());
                    if S::RAISE != 0 {
                        *line = S::xor(*line, raise);
                    }
                }
            }
            lines
        }
    }

    /// Initial sums of a row: they compensate for the offset of B's bytes.
    ///
    /// # Safety
    /// The contract of `Ints`.
    #[inline(always)]
    unsafe fn start<S: Ints>(&self, row: usize) -> S::I {
        // SAFETY: guaranteed by the caller.
        unsafe { S::splat(-i32::from(S::RAISE) * self.rows[row].sum) }
    }

    /// # Safety
    /// `tile` holds the row; the contract of `Ints`.
    #[inline(always)]
    unsafe fn put<S: Ints>(&self, row: usize, column: usize, sums: S::I) {
        // SAFETY: guaranteed by the caller.
        unsafe { S::L::store(self.tile.add(row * PANEL + column), S::float(sums)) }
    }
}

/// Sink that multiplies sums by the scales of their row and column and adds a row's two parts,
/// which are consecutive rows of codes. `INTS`: the sums are i32 by their bits.
struct Scaled<'a, K, const INTS: bool> {
    rows: &'a [Row],
    columns: &'a [f32],
    first: [f32; PANEL],
    sink: K,
}

impl<K: Sink, const INTS: bool> Sink for Scaled<'_, K, INTS> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        self.take_rows::<S>(row, column, std::slice::from_ref(sums));
    }

    #[inline(always)]
    fn take_rows<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        // Consecutive rows are passed on together.
        let mut ready = [[0f32; PANEL]; 8];
        let (mut start, mut count) = (0, 0);
        for (sums, Row { index, part, scale, .. }) in rows.iter().zip(&self.rows[row..]) {
            if count == ready.len() || *index != start + count {
                if count > 0 {
                    self.sink.take_rows::<S>(start, column, &ready[..count]);
                }
                (start, count) = (*index, 0);
            }
            let scaled = &mut ready[count];
            for ((out, sum), column) in scaled.iter_mut().zip(sums).zip(&self.columns[column..]) {
                let sum = if INTS { sum.to_bits() as i32 as f32 } else { *sum };
                *out = sum * (scale * column);
            }
            if *part == Part::First {
                self.first = *scaled;
                continue;
            }
            if *part == Part::Remainder {
                scaled.iter_mut().zip(&self.first).for_each(|(sum, first)| *sum += first);
            }
            count += 1;
        }
        if count > 0 {
            self.sink.take_rows::<S>(start, column, &ready[..count]);
        }
    }
}

#[cfg(test)]
mod tests;
