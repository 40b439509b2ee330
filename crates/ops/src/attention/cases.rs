//! Cases: ragged batches, single tokens, sequences beyond a query block and a panel, odd head sizes, scores far from zero.

use super::{Attention, attention};
use super::reference::{self, Problem};
use crate::case::{Case, Input, Tolerance};
use crate::{DType, Segments};

pub(crate) fn cases() -> Vec<Case> {
    // lengths, heads, head size, spread of q and k
    let shapes: [(&[usize], usize, usize, f32); 7] = [
        (&[16], 12, 32, 1.0),
        (&[1, 7, 33, 2, 64, 25], 12, 32, 1.0),
        (&[130, 5], 4, 64, 1.0),
        (&[40, 3], 1, 130, 1.0),
        (&[9, 1, 24], 3, 12, 1.0),
        (&[31], 2, 1, 1.0),
        (&[50, 13], 2, 64, 4.0),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (lengths, heads, size, spread): (&'static [usize], usize, usize, f32)) -> Case {
    let tokens: usize = lengths.iter().sum();
    let qkv = Input::normal(seed + 300, &[tokens, 3, heads, size], dtype, (0.0, spread));
    let scale = 1.0 / (size as f32).sqrt();
    let kept = qkv.clone();
    let longest = lengths.iter().max().copied().unwrap_or(0) as f64;
    let walk = 2.0 * (longest.sqrt() + (size as f64).sqrt());
    Case {
        op: "attention",
        name: format!("{lengths:?} x {heads} heads of {size}{}", if spread > 1.0 { ", peaked" } else { "" }),
        dtype,
        // One rounding in both forms. A score has an f32 error of a few roundings of its size, up to about 4 · spread², and
        // exp turns that into a relative error; both sums walk at random, √length and √size.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 16.0 * f64::from(spread * spread) + walk },
        flops: lengths.iter().map(|t| 4 * (t * t * heads * size) as u64).sum(),
        prepare: Box::new(move |place| {
            let (qkv, how) = (qkv.on(place)?, Attention { segments: Segments::new(lengths)?, scale });
            let (q, k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?);
            Ok(Box::new(move || attention(&q, &k, &v, &how)))
        }),
        reference: Box::new(move || match Segments::new(lengths) {
            Ok(segments) => {
                reference::attention(&Problem { qkv: &kept.values, heads, size, segments: &segments, scale })
            }
            Err(_) => Vec::new(),
        }),
    }
}
