//! Cases: widths on and off every vector size, tiny vectors, a zero vector.

use super::{l2_norm, reference};
use crate::DType;
use crate::case::{Case, Input, Tolerance};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, spread
    let shapes = [(64, 384, 1.0), (5, 33, 3.0), (3, 1, 1.0), (4, 768, 1e-3), (2, 20, 0.0)];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, spread): (usize, usize, f32)) -> Case {
    let x = Input::normal(seed + 500, &[rows, n], dtype, (0.0, spread));
    let kept = x.clone();
    Case {
        op: "l2_norm",
        name: format!("{rows}x{n} ± {spread}"),
        dtype,
        // A sum of positive numbers, a root and a division in f32, rounded once.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 8.0 },
        flops: 3 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?;
            Ok(Box::new(move || l2_norm(&x)))
        }),
        reference: Box::new(move || reference::l2_norm(&kept.values, n)),
    }
}
