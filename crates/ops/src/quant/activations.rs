//! Rows of activations in 8 bits, quantised once for a whole product.
#![allow(unsafe_code, reason = "tiles are written in parallel, each by one task, into memory not touched before")]

use super::Quant;
use super::format::{Fix, fix};
use crate::cpu::ints::Ints;
use crate::cpu::{IntKernel, Isa, Lanes, team};
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements that share a scale.
pub(super) const STEP: usize = 32;

/// A step of one row, and what the product needs to know of it beside.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(super) struct Step {
    /// In −127..=127.
    pub(super) values: [i8; STEP],
    /// What one of them is worth.
    pub(super) scale: f32,
    /// See [`Fix`]: one for all 32 elements or two for 16 each, as i32 or as the bits of an f32.
    pub(super) fix: [i32; 2],
}

/// Rows of x in 8 bits with a scale for every 32 elements.
///
/// Kept in tiles of rows, and in each tile step after step, so that a product that goes through k with a tile reads it from
/// end to end.
pub(crate) struct Activations {
    steps: Vec<Step>,
    rows: usize,
    k: usize,
    tile: usize,
    fix: Fix,
}

/// Bytes of activations that one tile may take: with a panel's lines passing by they should stay in a second-level cache.
const TILE_BYTES: usize = 640 << 10;

/// Rows of the largest tile.
pub(super) const MAX_TILE: usize = 64;

/// A row of x; it may be borrowed from where it is or made for the call.
pub(crate) type RowOf<'a> = &'a (dyn Fn(usize) -> Cow<'a, [f32]> + Sync);

impl Activations {
    /// `x` `[rows, k]` for products with weights in the format `quant`. k must be whole blocks of the format.
    pub(crate) fn new(isa: Isa, quant: Quant, rows: usize, k: usize, x: RowOf<'_>) -> Activations {
        assert!(k.is_multiple_of(STEP), "rows of {k} are not whole steps");
        // As even as the limits allow.
        let most = (TILE_BYTES / (k / STEP * size_of::<Step>()).max(1)).clamp(8, MAX_TILE);
        let tile = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let fix = isa.run_ints(FixOf(quant));
        let per_row = k / STEP;
        let mut steps = Vec::with_capacity(rows * per_row);
        if k > 0 {
            let room = &mut steps.spare_capacity_mut()[..rows * per_row];
            let fill = |i: usize, out: &mut [MaybeUninit<Step>]| {
                let rows = out.len() / per_row;
                for row in 0..rows {
                    let x = x(i * tile + row);
                    isa.run_ints(Quantize { x: &x[..k], fix, row, rows, out });
                }
            };
            // One row is not worth waking other threads for.
            if rows == 1 { fill(0, room) } else { team::each_chunk_mut(room, tile * per_row, fill) }
        }
        // SAFETY: a tile's rows are all its steps, and `Quantize` writes every step of its row.
        unsafe { steps.set_len(rows * per_row) };
        Activations { steps, rows, k, tile, fix }
    }

    /// Their length.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Tiles of rows.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile)
    }

    /// What corrections they carry.
    pub(super) fn fix(&self) -> Fix {
        self.fix
    }

    /// The rows of tile `i` and their steps: `[k / 32][rows]`.
    pub(super) fn tile(&self, i: usize) -> (Range<usize>, &[Step]) {
        let rows = i * self.tile..((i + 1) * self.tile).min(self.rows);
        let per_row = self.k / STEP;
        (rows.clone(), &self.steps[rows.start * per_row..rows.end * per_row])
    }
}

struct FixOf(Quant);

impl IntKernel for FixOf {
    type Output = Fix;

    #[inline(always)]
    fn run<S: Ints>(self) -> Fix {
        fix::<S>(self.0)
    }
}

/// One row of a tile of `rows`.
struct Quantize<'a> {
    x: &'a [f32],
    fix: Fix,
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
            out[self.row].write(quantized::<S::L>(x, self.fix));
        }
    }
}

/// Mostly plain loops over arrays, which the compiler turns into vectors of the kernel's instruction set.
#[inline(always)]
fn quantized<S: Lanes>(x: &[f32; STEP], fix: Fix) -> Step {
    // Compared as integers, by which what is no number is the largest of all: then so is the scale, and the result.
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    // Below this the reciprocal would overflow, and any sum is as good without the step.
    let inverse = if largest > 1e-35 { 127.0 / largest } else { 0.0 };
    // Adding 1.5·2²³ rounds to the nearest whole number, ties to even, and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let (mut values, mut rounded) = ([0; STEP], [0.0; STEP]);
    for (i, x) in x.iter().enumerate() {
        let shifted = x * inverse + ROUND;
        values[i] = shifted.to_bits() as i8;
        rounded[i] = shifted - ROUND;
    }
    // Sums of small whole numbers, exact in f32.
    let mut sums = [0.0; 2];
    for (sum, rounded) in sums.iter_mut().zip(rounded.as_chunks::<{ STEP / 2 }>().0) {
        // SAFETY: 16 elements are whole vectors of every instruction set, which `S` names by `run_ints`.
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
    if fix.parts() == 1 {
        sums = [sums[0] + sums[1], 0.0];
    }
    let fix = match fix {
        Fix::Start { offset, .. } => sums.map(|sum| -offset * sum as i32),
        Fix::Sums { .. } => sums.map(|sum| (scale * sum).to_bits() as i32),
    };
    Step { values, scale, fix }
}
