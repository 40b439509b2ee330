//! Rows of activations in 8 bits.
//!
//! A row's scale is its largest element by 127. Where that element stands far out of the row, the row has a second one of codes for
//! what the first leaves over: the only way that costs nothing where nothing stands out, and needs no sample of texts.
#![allow(unsafe_code, reason = "tasks fill disjoint rows of one buffer")]

use super::{DEPTH, Line, bytes_of_mut};
use crate::cpu::ints::{Ints, LINE};
use crate::cpu::rows::Output;
use crate::cpu::{IntKernel, Isa, team};
use std::borrow::Cow;

/// The largest of the values by size. Compared as integers, by which what is no number is the largest of all: then so is the scale,
/// and the result. Plain loops here and below, which the compiler turns into vectors of the kernel's instruction set.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}

/// Adding 1.5·2²³ rounds to the nearest whole number, ties to even, and leaves it in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// What brings the largest to 127. Below this the reciprocal would overflow, and any sum is as good without the row.
#[inline(always)]
fn inverse(largest: f32) -> f32 {
    if largest > 1e-35 { 127.0 / largest } else { 0.0 }
}

/// Codes of the values, of which this is the largest, and their sum.
#[inline(always)]
pub(super) fn quantize(x: &[f32], largest: f32, codes: &mut [i8]) -> i32 {
    let (inverse, mut sum) = (inverse(largest), 0);
    for (x, code) in x.iter().zip(codes) {
        *code = (x * inverse + ROUND).to_bits() as i8;
        sum += i32::from(*code);
    }
    sum
}

/// Steps of what codes leave over, to a step of theirs: half a step is at most 127 of them.
pub(super) const FINER: f32 = 254.0;

/// Codes of what [`quantize`] left over, and their sum.
#[inline(always)]
pub(super) fn quantize_rest(x: &[f32], largest: f32, codes: &mut [i8]) -> i32 {
    let (inverse, mut sum) = (inverse(largest), 0);
    for (x, code) in x.iter().zip(codes) {
        let steps = x * inverse;
        let rest = steps - (steps + ROUND - ROUND);
        *code = (rest * FINER + ROUND).to_bits() as i8;
        sum += i32::from(*code);
    }
    sum
}

/// How many times the root of the mean square the largest element of a row may be. Encoders have tokens with an element or two of
/// twenty times that, whose steps are too coarse for all others: MiniLM then falls to a cosine of 0.983 on texts like `?!...`. Such
/// a row is multiplied twice, as its codes and as the codes of what they leave over.
pub(super) const CREST: f32 = 7.0;

/// A: rows in 8 bits. Kept by who multiplies from call to call.
#[derive(Default)]
pub(crate) struct Codes {
    pub(super) lines: Vec<Line>,
    /// What each row of codes is; those of two parts come first, so that both are in one task.
    pub(super) rows: Vec<Row>,
    /// Of each row of A, its largest element and whether it has two parts.
    found: Vec<(f32, bool)>,
    pub(super) k: usize,
}

/// A row of codes.
#[derive(Clone, Copy, Default)]
pub(super) struct Row {
    /// The row of A.
    pub(super) of: usize,
    pub(super) part: Part,
    /// What one of them is worth.
    pub(super) scale: f32,
    pub(super) sum: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Whole,
    /// What follows is the rest of it.
    First,
    Rest,
}

/// A row of A; it may be borrowed from where it is or made for the call.
pub(crate) type RowOf<'a> = &'a (dyn Fn(usize) -> Cow<'a, [f32]> + Sync);

/// Rows that one task quantises.
const ROWS_A_TASK: usize = 16;

impl Codes {
    /// Bytes from row to row. A line more than they take spreads the rows of a tile over more sets of the cache.
    pub(super) fn stride(k: usize) -> usize {
        k.next_multiple_of(DEPTH) + LINE
    }

    /// The most memory that `rows` rows of `k` take.
    pub(crate) fn size_of(rows: usize, k: usize) -> usize {
        2 * rows * (Codes::stride(k) + size_of::<Row>()) + rows * size_of::<(f32, bool)>()
    }

    /// Rows of codes, an even number of which makes whole rows of A wherever they begin.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Becomes `rows` rows of `k`.
    pub(crate) fn fill(&mut self, isa: Isa, (rows, k): (usize, usize), x: RowOf<'_>) {
        let stride = Codes::stride(k);
        self.k = k;
        self.found.clear();
        self.found.resize(rows, (0.0, false));
        let found = Output::over(&mut self.found);
        by_rows(rows, |row| {
            // SAFETY: the row is this task's.
            let found = unsafe { found.part(row, 1) };
            found[0] = isa.run_ints(Look(&x(row)[..k]));
        });
        self.rows.clear();
        let found = self.found.iter().map(|(largest, twice)| (largest / 127.0, *twice)).enumerate();
        for (of, (scale, _)) in found.clone().filter(|(_, (_, twice))| *twice) {
            self.rows.push(Row { of, part: Part::First, scale, sum: 0 });
            self.rows.push(Row { of, part: Part::Rest, scale: scale / FINER, sum: 0 });
        }
        self.rows.extend(found.filter(|(_, (_, twice))| !twice).map(|(of, (scale, _))| Row {
            of,
            scale,
            ..Row::default()
        }));
        let count = self.rows.len();
        self.lines.resize(self.lines.len().max(count * stride / LINE), Line([0; LINE]));
        let (lines, rows) = (Output::over(bytes_of_mut(&mut self.lines)), Output::over(&mut self.rows));
        let found = &self.found;
        by_rows(count, |i| {
            // SAFETY: the row of codes is this task's.
            let (codes, row) = unsafe { (lines.part(i * stride, stride), &mut rows.part(i, 1)[0]) };
            let (largest, _) = found[row.of];
            row.sum = isa.run_ints(Quantize { x: &x(row.of)[..k], largest, part: row.part, codes });
        });
    }
}

fn by_rows(rows: usize, run: impl Fn(usize) + Sync) {
    team::each(rows.div_ceil(ROWS_A_TASK), |task| {
        (task * ROWS_A_TASK..rows.min((task + 1) * ROWS_A_TASK)).for_each(&run);
    });
}

/// The largest element of a row, and whether it stands out.
struct Look<'a>(&'a [f32]);

impl IntKernel for Look<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn run<S: Ints>(self) -> (f32, bool) {
        let largest = largest(self.0);
        // In 16 sums, in an order that does not depend on the instruction set, so that no row's parts do.
        let (inverse, mut squares) = (inverse(largest), [0f32; 16]);
        for x in self.0.chunks(16) {
            for (sum, x) in squares.iter_mut().zip(x) {
                *sum += x * inverse * (x * inverse);
            }
        }
        let mean = squares.iter().sum::<f32>() / self.0.len().max(1) as f32;
        (largest, mean * CREST * CREST < 127.0 * 127.0 && mean > 0.0)
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
        let (codes, rest) = self.codes.split_at_mut(self.x.len());
        // What another call left here.
        rest.fill(0);
        match self.part {
            Part::Whole | Part::First => quantize(self.x, self.largest, codes),
            Part::Rest => quantize_rest(self.x, self.largest, codes),
        }
    }
}
