//! Matrix products (GEMM; GEMV for one row): y = x · Wᵀ with W packed in a block format and x in 8
//! bits.
//!
//! The kernel goes through k in steps of 32 elements. It unpacks the step's lines of a panel to
//! bytes, eight registers of them, and multiplies them with the step of every row of a tile:
//! integer dot products within the step, then one multiplication by both scales into the row's f32
//! sums. So weights are unpacked once per tile, and a single row (decoding) reads each weight once
//! from memory and does little else.
//!
//! AMX was tried here: a step's lines as the B tile, the steps of 16 rows as the A tile. The
//! integers are the same, but in whole models on two threads it was a sixth to a quarter slower,
//! because every 32 elements the sums go through memory for their scales.
#![allow(unsafe_code, reason = "SIMD lanes, and raw pointers into panels and tiles; `Task` checks their bounds")]

use super::activations::{Activations, MAX_TILE, STEP, Step};
use super::format::{Format, Scales, chunk_bytes, correction, with_format};
use super::{Packed, Quant};
use crate::cpu::gemm::{PANEL, Sink};
use crate::cpu::ints::{Ints, LINE, ROWS};
use crate::cpu::{IntKernel, Isa, Lanes};
use std::ops::Range;

/// Panels of weights per [`PANEL`] columns of a sink.
const PANELS: usize = PANEL / ROWS;

/// Prefetch distance in bytes. Hardware prefetching ends at each page.
const PREFETCH_BYTES: usize = 4096;

/// Number of columns of `w`, in units of [`PANEL`].
pub(crate) fn columns(w: &Packed) -> usize {
    w.n().div_ceil(PANEL)
}

/// Multiplies tile `tile` of `x` by `columns` of `w`, in units of [`PANEL`], and passes the sums to
/// `sink`.
#[inline(always)]
pub(crate) fn multiply<S: Lanes>(
    isa: Isa,
    x: &Activations,
    w: &Packed,
    tile: usize,
    columns: Range<usize>,
    sink: &mut impl Sink,
) {
    let (rows, steps) = x.tile(tile);
    let mut sums = [[0.0; PANEL]; MAX_TILE];
    for column in columns {
        isa.run_ints(Task { x, w, steps, column, sums: &mut sums[..rows.len()] });
        for (row, sums) in rows.clone().zip(&sums) {
            sink.take::<S>(row, column * PANEL, sums);
        }
    }
}

/// Computes the sums of one tile and [`PANEL`] columns.
struct Task<'a> {
    x: &'a Activations,
    w: &'a Packed,
    steps: &'a [Step],
    column: usize,
    sums: &'a mut [[f32; PANEL]],
}

impl IntKernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Ints>(self) {
        let Task { x, w, steps, column, sums } = self;
        let rows = sums.len();
        assert!(
            x.k() == w.k() && x.correction() == correction::<S>(w.quant()),
            "the activations are quantized for another format or depth"
        );
        assert!(steps.len() == rows * (w.k() / STEP));
        sums.fill([0.0; PANEL]);
        let panels = column * PANELS..((column + 1) * PANELS).min(w.n().div_ceil(ROWS));
        for (i, panel) in panels.enumerate() {
            let bytes = &w.bytes()[panel * w.panel_bytes()..][..w.panel_bytes()];
            let sums = sums.as_mut_ptr().cast::<f32>();
            // SAFETY: the panel is complete, `sums` holds `rows` rows and the steps are theirs;
            // `run_ints` guarantees `Ints`.
            unsafe {
                let job = Job { bytes, steps: steps.as_ptr(), rows, sums: sums.add(i * ROWS) };
                with_format!(w.quant(), F => {
                    if S::STRIPS == 1 { job.panel::<S, F, 1>() } else { job.panel::<S, F, 2>() }
                });
            }
        }
    }
}

/// A panel and the rows that it is multiplied by.
struct Job<'a> {
    bytes: &'a [u8],
    /// `[k / 32][rows]`
    steps: *const Step,
    rows: usize,
    /// `[rows][PANEL]`; the first [`ROWS`] of each row belong to this panel.
    sums: *mut f32,
}

/// Position in a panel.
#[derive(Clone, Copy)]
struct At {
    chunk: *const u8,
    step: usize,
    /// The first of the strips.
    strip: usize,
}

impl Job<'_> {
    #[inline(always)]
    unsafe fn panel<S: Ints, F: Format, const STRIPS: usize>(&self) {
        let mut steps = self.steps;
        for chunk in self.bytes.chunks_exact(chunk_bytes::<F>()) {
            // SAFETY: a whole chunk; a chunk has BLOCK / 32 steps, and so has each row.
            unsafe {
                let chunk = chunk.as_ptr();
                for line in (0..chunk_bytes::<F>()).step_by(LINE) {
                    S::prefetch(chunk.wrapping_add(PREFETCH_BYTES + line));
                }
                let head = F::head(chunk);
                for step in 0..F::BLOCK / STEP {
                    let mut at = At { chunk, step, strip: 0 };
                    while at.strip < ROWS / S::L::WIDTH {
                        self.step::<S, F, STRIPS>(at, &head, steps);
                        at.strip += STRIPS;
                    }
                    steps = steps.add(self.rows);
                }
            }
        }
    }

    /// Multiplies one step of `STRIPS` strips for every row; `x` is the step of the first row.
    #[inline(always)]
    unsafe fn step<S: Ints, F: Format, const STRIPS: usize>(&self, at: At, head: &F::Head, x: *const Step) {
        let At { chunk, step, strip } = at;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut lines = [[S::splat_byte(0); 8]; STRIPS];
            let zero = S::L::splat(0.0);
            let mut scales = [([zero; 2], [zero; 2]); STRIPS];
            for i in 0..STRIPS {
                lines[i] = F::lines::<S>(chunk, step, strip + i);
                let Scales { scale, min } = F::scales::<S>(chunk, head, step, strip + i);
                scales[i] = (scale, min);
            }
            for row in 0..self.rows {
                let x = &*x.add(row);
                let sums = self.sums.add(row * PANEL + strip * S::L::WIDTH);
                for i in 0..STRIPS {
                    let (scale, min) = scales[i];
                    let to = sums.add(i * S::L::WIDTH);
                    let mut sum = S::L::load(to);
                    let a = S::L::splat(x.scale);
                    if F::PARTS == 1 {
                        let dots = S::float(S::dot(F::BITS, start::<S, F>(x, 0), &lines[i], x.values.as_ptr()));
                        sum = S::L::fma(S::L::mul(scale[0], a), dots, sum);
                    } else {
                        let (first, second) = lines[i].split_at(4);
                        let (lower, upper) = (x.values.as_ptr(), x.values.as_ptr().add(STEP / 2));
                        let first = S::float(S::dot(F::BITS, start::<S, F>(x, 0), first, lower));
                        let second = S::float(S::dot(F::BITS, start::<S, F>(x, 1), second, upper));
                        let both = S::L::fma(scale[1], second, S::L::mul(scale[0], first));
                        sum = S::L::fma(both, a, sum);
                    }
                    if F::OFFSET.is_none() {
                        for (min, correction) in min.into_iter().zip(x.correction).take(F::PARTS) {
                            sum = S::L::fma(min, S::L::splat(f32::from_bits(correction as u32)), sum);
                        }
                    }
                    S::L::store(to, sum);
                }
            }
        }
    }
}

/// Initial value of a part's sum of products.
#[inline(always)]
unsafe fn start<S: Ints, F: Format>(x: &Step, part: usize) -> S::I {
    // SAFETY: guaranteed by the caller.
    unsafe { S::splat(if F::OFFSET.is_some() { x.correction[part] } else { 0 }) }
}

/// Partition of a product into tasks: tiles of x times runs of columns.
pub(crate) struct Split {
    tiles: usize,
    runs: usize,
    per_run: usize,
    columns: usize,
}

impl Split {
    /// Partition of this product for the threads of the team.
    pub(crate) fn of(x: &Activations, w: &Packed) -> Split {
        let (tiles, columns) = (x.tiles(), columns(w));
        // A few tasks per thread, so that a delayed one does not delay all; but none of less than
        // 64 KiB.
        let runs = (4 * crate::threads::count()).div_ceil(tiles.max(1));
        let min_columns = (64 << 10) / (PANELS * w.panel_bytes()).max(1);
        let per_run = columns.div_ceil(runs).max(min_columns).max(1);
        Split { tiles, runs: columns.div_ceil(per_run), per_run, columns }
    }

    /// Number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.tiles * self.runs
    }

    /// The tile and the columns of a task. Consecutive tasks share their tile.
    pub(crate) fn task(&self, i: usize) -> (usize, Range<usize>) {
        let (tile, run) = (i / self.runs, i % self.runs);
        (tile, run * self.per_run..((run + 1) * self.per_run).min(self.columns))
    }
}
