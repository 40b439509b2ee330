//! Rows of activations, quantized to int8 with a scale per row (dynamic quantization).
//!
//! A row's scale is its largest element divided by 127. If that element is an outlier, the row gets
//! a second row of codes for the remainder that the first one leaves. Unlike other methods this
//! costs nothing for rows without outliers, and needs no calibration data.
#![allow(unsafe_code, reason = "tasks fill disjoint rows of one buffer")]

use super::{DEPTH, Line, bytes_of_mut};
use crate::cpu::ints::{Ints, LINE};
use crate::cpu::rows::Output;
use crate::cpu::{IntKernel, Isa, team};
use std::borrow::Cow;

/// The largest absolute value. Compared as integers, where NaN is larger than any number: then the
/// scale and the result are NaN too. The loops here and below are plain, for the compiler to
/// vectorize with the kernel's instruction set.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}

/// Adding 1.5·2²³ rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// The factor that maps the largest element to 127. Below 1e-35 the reciprocal would overflow, and
/// the row contributes nothing to any sum.
#[inline(always)]
fn inverse(largest: f32) -> f32 {
    if largest > 1e-35 { 127.0 / largest } else { 0.0 }
}

/// Writes the codes of `values`, whose largest absolute value is given, and returns their sum.
#[inline(always)]
pub(super) fn quantize(x: &[f32], largest: f32, codes: &mut [i8]) -> i32 {
    let (inverse, mut sum) = (inverse(largest), 0);
    for (x, code) in x.iter().zip(codes) {
        *code = (x * inverse + ROUND).to_bits() as i8;
        sum += i32::from(*code);
    }
    sum
}

/// Steps of the remainder's codes per step of the first codes: half a step is at most 127 of them.
pub(super) const REMAINDER_STEPS: f32 = 254.0;

/// Writes the codes of the remainder that [`quantize`] left, and returns their sum.
#[inline(always)]
pub(super) fn quantize_remainder(x: &[f32], largest: f32, codes: &mut [i8]) -> i32 {
    let (inverse, mut sum) = (inverse(largest), 0);
    for (x, code) in x.iter().zip(codes) {
        let steps = x * inverse;
        let rest = steps - (steps + ROUND - ROUND);
        *code = (rest * REMAINDER_STEPS + ROUND).to_bits() as i8;
        sum += i32::from(*code);
    }
    sum
}

/// Limit of a row's crest factor: its largest element divided by its root mean square. Encoders
/// have tokens with an element or two of twenty times the RMS, for which the step is too coarse for
/// all other elements: MiniLM then falls to a cosine of 0.983 on texts like `?!...`. Such a row is
/// multiplied twice, as its codes and as the codes of the remainder.
pub(super) const MAX_CREST: f32 = 7.0;

/// Matrix A: rows quantized to int8. The caller reuses the buffers from call to call.
#[derive(Default)]
pub(crate) struct Codes {
    pub(super) lines: Vec<Line>,
    /// Description of each row of codes. Rows in two parts come first, so that both parts are in
    /// one task.
    pub(super) rows: Vec<Row>,
    /// For each row of A, its largest element and whether it needs two parts.
    stats: Vec<(f32, bool)>,
    pub(super) k: usize,
}

/// A row of codes.
#[derive(Clone, Copy, Default)]
pub(super) struct Row {
    /// Index of the row of A.
    pub(super) index: usize,
    pub(super) part: Part,
    /// Value of one step.
    pub(super) scale: f32,
    pub(super) sum: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Whole,
    /// The first part of a row; the next row of codes is its remainder.
    First,
    Remainder,
}

/// Reads a row of A; the result may be borrowed or converted for the call.
pub(crate) type ReadRow<'a> = &'a (dyn Fn(usize) -> Cow<'a, [f32]> + Sync);

/// Rows that one task quantizes.
const ROWS_PER_TASK: usize = 16;

impl Codes {
    /// Bytes from row to row. A cache line more than needed spreads the rows of a tile over more
    /// cache sets.
    pub(super) fn stride(k: usize) -> usize {
        k.next_multiple_of(DEPTH) + LINE
    }

    /// Upper bound of the memory for `rows` rows of `k`.
    pub(crate) fn size_of(rows: usize, k: usize) -> usize {
        2 * rows * (Codes::stride(k) + size_of::<Row>()) + rows * size_of::<(f32, bool)>()
    }

    /// Number of rows of codes. An even range of them has whole rows of A, wherever it begins.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Quantizes `rows` rows of `k` elements.
    pub(crate) fn fill(&mut self, isa: Isa, (rows, k): (usize, usize), x: ReadRow<'_>) {
        let stride = Codes::stride(k);
        self.k = k;
        self.stats.clear();
        self.stats.resize(rows, (0.0, false));
        let stats = Output::over(&mut self.stats);
        by_rows(rows, |row| {
            // SAFETY: the row belongs to this task.
            let stats = unsafe { stats.part(row, 1) };
            stats[0] = isa.run_ints(FindOutlier(&x(row)[..k]));
        });
        self.rows.clear();
        let stats = self.stats.iter().map(|(largest, in_two_parts)| (largest / 127.0, *in_two_parts)).enumerate();
        for (index, (scale, _)) in stats.clone().filter(|(_, (_, in_two_parts))| *in_two_parts) {
            self.rows.push(Row { index, part: Part::First, scale, sum: 0 });
            self.rows.push(Row { index, part: Part::Remainder, scale: scale / REMAINDER_STEPS, sum: 0 });
        }
        self.rows.extend(stats.filter(|(_, (_, in_two_parts))| !in_two_parts).map(|(index, (scale, _))| Row {
            index,
            scale,
            ..Row::default()
        }));
        let count = self.rows.len();
        self.lines.resize(self.lines.len().max(count * stride / LINE), Line([0; LINE]));
        let (lines, rows) = (Output::over(bytes_of_mut(&mut self.lines)), Output::over(&mut self.rows));
        let stats = &self.stats;
        by_rows(count, |i| {
            // SAFETY: the row of codes belongs to this task.
            let (codes, row) = unsafe { (lines.part(i * stride, stride), &mut rows.part(i, 1)[0]) };
            let (largest, _) = stats[row.index];
            row.sum = isa.run_ints(Quantize { x: &x(row.index)[..k], largest, part: row.part, codes });
        });
    }
}

fn by_rows(rows: usize, run: impl Fn(usize) + Sync) {
    team::each(rows.div_ceil(ROWS_PER_TASK), |task| {
        (task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK)).for_each(&run);
    });
}

/// Finds the largest element of a row, and whether it is an outlier.
struct FindOutlier<'a>(&'a [f32]);

impl IntKernel for FindOutlier<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn run<S: Ints>(self) -> (f32, bool) {
        let largest = largest(self.0);
        // 16 sums, in an order that does not depend on the instruction set, so that the split does
        // not either.
        let (inverse, mut squares) = (inverse(largest), [0f32; 16]);
        for x in self.0.chunks(16) {
            for (sum, x) in squares.iter_mut().zip(x) {
                *sum += x * inverse * (x * inverse);
            }
        }
        let mean = squares.iter().sum::<f32>() / self.0.len().max(1) as f32;
        (largest, mean * MAX_CREST * MAX_CREST < 127.0 * 127.0 && mean > 0.0)
    }
}

struct Quantize<'a> {
    x: &'a [f32],
    largest: f32,
    part: Part,
    codes: &'a mut [i8],
}

impl IntKernel for Quantize<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Ints>(self) -> i32 {
        let (codes, padding) = self.codes.split_at_mut(self.x.len());
        // Clears what an earlier call left in the padding.
        padding.fill(0);
        match self.part {
            Part::Whole | Part::First => quantize(self.x, self.largest, codes),
            Part::Remainder => quantize_remainder(self.x, self.largest, codes),
        }
    }
}
