//! Cases: widths that are and are not multiples of every vector size, a row as small as eps,
//! factors 1 + w, heads of a wider projection.

use super::{RmsNorm, reference};
use crate::DType;
use crate::case::{Case, Input, Tolerance, weights};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, spread, factor 1 + w
    let shapes = [
        (64, 512, 1.0, false),
        (5, 33, 3.0, false),
        (3, 1, 1.0, false),
        (6, 768, 1e-3, false),
        (2, 4097, 10.0, false),
        (7, 64, 1.0, true),
        (2, 19, 4.0, true),
        (1, 4099, 1.0, true),
        // Whole runs of 16 bytes, in few rows and in many.
        (2, 2048, 1.0, false),
        (90, 1032, 1.0, true),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, spread, from_one): (usize, usize, f32, bool)) -> Case {
    let eps = 1e-6;
    // Tokens of five heads, the three in the middle of which are normalized.
    let x = Input::normal(seed * 2 + 700, &[rows, 5, n], dtype, (0.0, spread));
    let w = Input::normal(seed * 2 + 701, &[n], dtype, (if from_one { 0.0 } else { 1.0 }, 0.3));
    let (rx, rw) = (x.clone(), w.clone());
    Case {
        op: "rms_norm",
        name: format!("{rows}x3x{n} ± {spread}{}", if from_one { ", from one" } else { "" }),
        dtype,
        // Rounded before and after the weight, in both forms; the second error grows with the
        // weight, up to twice. A residual adds one more, to a sum that may be small between large
        // terms.
        tolerance: Tolerance { fused: 2.5, composed: 2.5, sums: 8.0 + if from_one { 8.0 } else { 0.0 } },
        flops: 12 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let norm = RmsNorm::load(&weights(&[("weight", &w)], place), n, eps)?;
            let norm = if from_one { norm.from_one() } else { norm };
            let x = x.on(place)?;
            let (middle, last) = (x.narrow(1, 1, 3)?, x.narrow(1, 2, 3)?);
            Ok(Box::new(move || if from_one { norm.forward_added(&middle, &last) } else { norm.forward(&middle) }))
        }),
        reference: Box::new(move || {
            let x: Vec<f32> = rx.values.chunks(5 * n).flat_map(|token| token[n..4 * n].to_vec()).collect();
            let w: Vec<f64> = rw.values.iter().map(|w| f64::from(*w) + if from_one { 1.0 } else { 0.0 }).collect();
            let added: Vec<f32> = match from_one {
                true => rx.values.chunks(5 * n).flat_map(|token| token[2 * n..5 * n].to_vec()).collect(),
                false => vec![0.0; x.len()],
            };
            reference::rms_norm(&x, &w, eps).iter().zip(added).map(|(y, r)| y + f64::from(r)).collect()
        }),
    }
}
