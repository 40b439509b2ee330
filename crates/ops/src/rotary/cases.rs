//! Cases: whole heads and a part of them, a view into a fused projection, positions far out.

use super::Rotary;
use super::reference::{self, Problem};
use crate::case::{Case, Input, Tolerance, ids, weights};
use crate::{DType, Tensor};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, heads, head size, dims turned, positions, base
    let shapes = [
        (64, 24, 64, 64, 512, 10_000.0),
        (9, 3, 12, 12, 40, 1_000.0),
        (5, 2, 80, 32, 8192, 160_000.0),
        (3, 1, 2, 2, 7, 10_000.0),
        (11, 3, 17, 6, 3, 1_000.0),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

type Shape = (usize, usize, usize, usize, usize, f64);

fn one(seed: u64, dtype: DType, (tokens, heads, size, dims, positions, base): Shape) -> Case {
    // Half of the heads of a wider tensor, as queries and keys are of a fused projection.
    let x = Input::normal(seed + 800, &[tokens, 2 * heads, size], dtype, (0.0, 1.0));
    let at = ids(seed + 850, tokens, positions as u32);
    let frequencies = Rotary::frequencies(base, dims);
    let seen = x.values.chunks(2 * heads * size).flat_map(|row| row[..heads * size].to_vec()).collect::<Vec<f32>>();
    let (kept, turned) = (at.clone(), frequencies.clone());
    Case {
        op: "rotary",
        name: format!("{tokens}x{heads}x{size}, {dims} turned"),
        dtype,
        // Two products and a sum in f32, rounded once.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 4.0 },
        flops: 3 * (tokens * heads * size) as u64,
        prepare: Box::new(move |place| {
            let rotary = Rotary::new(&weights(&[], place), &frequencies, positions)?;
            let x = x.on(place)?.narrow(1, 0, heads)?;
            let at = Tensor::from_u32(&at, place)?;
            Ok(Box::new(move || rotary.forward(&x, &at)))
        }),
        reference: Box::new(move || {
            reference::rotary(&Problem { x: &seen, positions: &kept, frequencies: &turned, heads, size })
        }),
    }
}
