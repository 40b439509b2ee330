//! Cases: every mode, several at once, single tokens, skipped prompts, widths that are and are not
//! multiples of the vector size.

use super::reference::{self, Problem};
use super::{Pooling, pool};
use crate::case::{Case, Input, Tolerance};
use crate::{DType, Segments};

const ALL: &[Pooling] =
    &[Pooling::Cls, Pooling::Mean, Pooling::Max, Pooling::MeanSqrtLen, Pooling::WeightedMean, Pooling::LastToken];

pub(crate) fn cases() -> Vec<Case> {
    type Shape = (&'static [usize], &'static [usize], usize, &'static [Pooling]);
    // lengths, skips, width, modes
    let mut shapes: Vec<Shape> = vec![
        (&[16, 1, 128], &[0, 0, 0], 384, &[Pooling::Mean]),
        (&[5, 9, 1, 33], &[0, 3, 0, 4], 130, ALL),
        (&[200], &[7], 31, &[Pooling::Max, Pooling::Mean]),
    ];
    shapes.extend(ALL.chunks(1).map(|mode| (&[4usize, 7] as &[_], &[0usize, 2] as &[_], 33, mode)));
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s)).collect::<Vec<_>>();
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(
    seed: u64,
    dtype: DType,
    (lengths, skip, n, modes): (&'static [usize], &'static [usize], usize, &'static [Pooling]),
) -> Case {
    let tokens: usize = lengths.iter().sum();
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let x = Input::normal(seed + 600, &[tokens, width], dtype, (0.0, 1.0));
    let columns = x.columns(start, n);
    Case {
        op: "pool",
        name: format!("{lengths:?} skip {skip:?} x {n} {modes:?}"),
        dtype,
        // f32 sums of numbers that are exact in every dtype; the result stays in f32, so nothing is
        // rounded to T.
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: 24.0 },
        flops: (tokens * n * modes.len()) as u64,
        prepare: Box::new(move |place| {
            let (x, segments) = (x.on(place)?.narrow(1, start, n)?, Segments::new(lengths)?);
            Ok(Box::new(move || pool(&x, &segments, skip, modes)))
        }),
        reference: Box::new(move || match Segments::new(lengths) {
            Ok(segments) => reference::pool(&Problem { x: &columns, n, segments: &segments, skip, modes }),
            Err(_) => Vec::new(),
        }),
    }
}
