//! Rows of activations, quantized to 8 bits once for a whole product.
#![allow(unsafe_code, reason = "tiles are written in parallel, each by one task, into memory not touched before")]

use super::Quant;
use super::format::{Correction, correction};
use crate::cpu::ints::Ints;
use crate::cpu::{IntKernel, Isa, Lanes, team};
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements per scale.
pub(super) const STEP: usize = 32;

/// 32 quantized elements of a row, with the values that the product needs besides.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(super) struct Step {
    /// In −127..=127.
    pub(super) values: [i8; STEP],
    /// Value of one quantization step.
    pub(super) scale: f32,
    /// See [`Correction`]: one for all 32 elements or two for 16 each, as i32 or as the bits of an
    /// f32.
    pub(super) correction: [i32; 2],
}

/// Rows of x in 8 bits with a scale for every 32 elements (like Q8_0).
///
/// Stored in tiles of rows, and each tile step by step, so that a product that goes through k with
/// a tile reads memory sequentially.
pub(crate) struct Activations {
    steps: Vec<Step>,
    rows: usize,
    k: usize,
    tile: usize,
    correction: Correction,
}

/// Upper bound of a tile's bytes: it should stay in a second-level cache beside the lines of a
/// panel.
const TILE_BYTES: usize = 640 << 10;

/// Rows of the largest tile.
pub(super) const MAX_TILE: usize = 64;

/// Reads a row of x; the result may be borrowed or converted for the call.
pub(crate) type ReadRow<'a> = &'a (dyn Fn(usize) -> Cow<'a, [f32]> + Sync);

impl Activations {
    /// Quantizes `x` `[rows, k]` for products with weights in the format `quant`. k must be whole
    /// blocks of the format.
    pub(crate) fn new(isa: Isa, quant: Quant, rows: usize, k: usize, x: ReadRow<'_>) -> Activations {
        assert!(k.is_multiple_of(STEP), "rows of {k} elements are not a multiple of 32");
        // Tiles as even as the limits allow.
        let most = (TILE_BYTES / (k / STEP * size_of::<Step>()).max(1)).clamp(8, MAX_TILE);
        let tile = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let correction = isa.run_ints(CorrectionOf(quant));
        let per_row = k / STEP;
        let mut steps = Vec::with_capacity(rows * per_row);
        if k > 0 {
            let buffer = &mut steps.spare_capacity_mut()[..rows * per_row];
            let fill = |i: usize, out: &mut [MaybeUninit<Step>]| {
                let rows = out.len() / per_row;
                for row in 0..rows {
                    let x = x(i * tile + row);
                    isa.run_ints(Quantize { x: &x[..k], correction, row, rows, out });
                }
            };
            // A single row does not pay for waking other threads.
            if rows == 1 { fill(0, buffer) } else { team::each_chunk_mut(buffer, tile * per_row, fill) }
        }
        // SAFETY: the tiles have all steps of their rows, and `Quantize` writes every step of its
        // row.
        unsafe { steps.set_len(rows * per_row) };
        Activations { steps, rows, k, tile, correction }
    }

    /// Elements per row.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Number of tiles of rows.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile)
    }

    /// Kind of corrections that the steps carry.
    pub(super) fn correction(&self) -> Correction {
        self.correction
    }

    /// The rows of tile `i`, and their steps: `[k / 32][rows]`.
    pub(super) fn tile(&self, i: usize) -> (Range<usize>, &[Step]) {
        let rows = i * self.tile..((i + 1) * self.tile).min(self.rows);
        let per_row = self.k / STEP;
        (rows.clone(), &self.steps[rows.start * per_row..rows.end * per_row])
    }
}

struct CorrectionOf(Quant);

impl IntKernel for CorrectionOf {
    type Output = Correction;

    #[inline(always)]
    fn run<S: Ints>(self) -> Correction {
        correction::<S>(self.0)
    }
}

/// Quantizes one row of a tile of `rows`.
struct Quantize<'a> {
    x: &'a [f32],
    correction: Correction,
    row: usize,
    rows: usize,
    out: &'a mut [MaybeUninit<Step>],
}

impl IntKernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Ints>(self) {
        let (steps, _) = self.x.as_chunks::<STEP>();
        for (x, out) in steps.iter().zip(self.out.chunks_exact_mut(self.rows)) {
            out[self.row].write(quantized::<S::L>(x, self.correction));
        }
    }
}

/// Quantizes 32 elements. Mostly plain loops over arrays, for the compiler to vectorize with the
/// kernel's instruction set.
#[inline(always)]
fn quantized<S: Lanes>(x: &[f32; STEP], correction: Correction) -> Step {
    // Compared as integers, where NaN is larger than any number: then the scale and the result are
    // NaN too.
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    // Below 1e-35 the reciprocal would overflow, and the step contributes nothing to any sum.
    let inverse = if largest > 1e-35 { 127.0 / largest } else { 0.0 };
    // Adding 1.5·2²³ rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let (mut values, mut rounded) = ([0; STEP], [0.0; STEP]);
    for (i, x) in x.iter().enumerate() {
        let shifted = x * inverse + ROUND;
        values[i] = shifted.to_bits() as i8;
        rounded[i] = shifted - ROUND;
    }
    // Sums of small integers are exact in f32.
    let mut sums = [0.0; 2];
    for (sum, rounded) in sums.iter_mut().zip(rounded.as_chunks::<{ STEP / 2 }>().0) {
        // SAFETY: 16 elements are whole vectors of every instruction set; `run_ints` guarantees
        // `S`.
        unsafe {
            let mut total = S::load(rounded.as_ptr());
            let mut i = S::WIDTH;
            while i < STEP / 2 {
                total = S::add(total, S::load(rounded.as_ptr().add(i)));
                i += S::WIDTH;
            }
            *sum = S::sum(total);
        }
    }
    let scale = largest / 127.0;
    if correction.parts() == 1 {
        sums = [sums[0] + sums[1], 0.0];
    }
    let correction = match correction {
        Correction::Start { offset, .. } => sums.map(|sum| -offset * sum as i32),
        Correction::Sums { .. } => sums.map(|sum| (scale * sum).to_bits() as i32),
    };
    Step { values, scale, correction }
}
