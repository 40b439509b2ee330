//! Cases: widths on and off every vector size, a row as small as eps.

use super::{RmsNorm, reference};
use crate::DType;
use crate::case::{Case, Input, Tolerance, weights};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, spread
    let shapes = [(64, 512, 1.0), (5, 33, 3.0), (3, 1, 1.0), (6, 768, 1e-3), (2, 4097, 10.0)];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, spread): (usize, usize, f32)) -> Case {
    let eps = 1e-6;
    let x = Input::normal(seed * 2 + 700, &[rows, n], dtype, (0.0, spread));
    let w = Input::normal(seed * 2 + 701, &[n], dtype, (1.0, 0.3));
    let (rx, rw) = (x.clone(), w.clone());
    Case {
        op: "rms_norm",
        name: format!("{rows}x{n} ± {spread}"),
        dtype,
        // Rounded before the weight and after it, in both forms; the second error grows with the weight, up to twice.
        tolerance: Tolerance { fused: 2.5, composed: 2.5, sums: 8.0 },
        flops: 4 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let norm = RmsNorm::load(&weights(&[("weight", &w)], place), n, eps)?;
            let x = x.on(place)?;
            Ok(Box::new(move || norm.forward(&x)))
        }),
        reference: Box::new(move || reference::rms_norm(&rx.values, &rw.values, eps)),
    }
}
