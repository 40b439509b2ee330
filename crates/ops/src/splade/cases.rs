//! Cases: maximum and sum over tokens, the logarithm once and twice, vocabularies that are not a
//! multiple of the panel.

use super::reference::{self, Problem};
use super::{Splade, splade};
use crate::case::{Case, Input, Tolerance, weights};
use crate::{DType, Linear, Segments};

pub(crate) fn cases() -> Vec<Case> {
    let (max, sum) = (Splade { sum: false, twice: false }, Splade { sum: true, twice: false });
    let shapes: [(&[usize], usize, usize, Splade); 7] = [
        (&[30, 1, 7], 96, 1000, max),
        (&[5, 2], 40, 33, Splade { twice: true, ..max }),
        (&[9, 1], 64, 301, sum),
        (&[4], 16, 31, Splade { twice: true, ..sum }),
        // Sequences of several tiles, complete and not, and rows that are not a multiple of four.
        (&[90, 64, 3], 24, 70, max),
        (&[40, 7], 37, 70, sum),
        (&[50, 7], 40, 70, sum),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (lengths, k, n, options): (&'static [usize], usize, usize, Splade)) -> Case {
    let x = Input::normal(seed * 3 + 1000, &[lengths.iter().sum(), k], dtype, (0.0, 1.0));
    let w = Input::normal(seed * 3 + 1001, &[n, k], dtype, (0.0, 1.0 / (k as f32).sqrt()));
    let b = Input::normal(seed * 3 + 1002, &[n], dtype, (0.0, 0.5));
    let (rx, rw, rb) = (x.clone(), w.clone(), b.clone());
    Case {
        op: "splade",
        name: format!(
            "{lengths:?} x {k} → {n}, {}{}",
            if options.sum { "sum" } else { "max" },
            if options.twice { ", twice" } else { "" }
        ),
        dtype,
        // Everything is in f32. Composed rounds the product to T first.
        tolerance: Tolerance { fused: 0.0, composed: 2.0, sums: 8.0 + 2.0 * (k as f64).sqrt() },
        flops: 2 * (lengths.iter().sum::<usize>() * k * n) as u64,
        prepare: Box::new(move |place| {
            let vocabulary = Linear::load(&weights(&[("weight", &w), ("bias", &b)], place), k, n, true)?;
            let (x, segments) = (x.on(place)?, Segments::new(lengths)?);
            Ok(Box::new(move || splade(&x, &segments, &vocabulary, options)))
        }),
        reference: Box::new(move || match Segments::new(lengths) {
            Ok(segments) => reference::splade(&Problem {
                x: &rx.values,
                w: &rw.values,
                bias: &rb.values,
                k,
                segments: &segments,
                options,
            }),
            Err(_) => Vec::new(),
        }),
    }
}
