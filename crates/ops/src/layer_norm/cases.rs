//! Cases: with and without bias and residual, widths that are and are not multiples of every vector
//! size, a mean far from zero, many rows.

use super::LayerNorm;
use super::reference::{Problem, layer_norm};
use crate::DType;
use crate::case::{Case, Input, Tolerance, weights};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, bias, residual, centre and spread of x
    let shapes = [
        (1, 384, true, true, (0.0, 1.0)),
        (64, 384, true, false, (0.0, 1.0)),
        (33, 768, false, true, (0.0, 1.0)),
        (5, 130, true, true, (0.0, 1.0)),
        (7, 31, false, false, (0.0, 1.0)),
        (3, 1, true, false, (0.0, 1.0)),
        (4, 1024, true, false, (30.0, 1.0)),
        (2, 4097, true, true, (0.0, 1.0)),
        // The variance is as small as eps, so a wrong eps shows.
        (6, 96, true, false, (0.0, 3e-3)),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).chain(DType::FLOATS.map(heads)).collect()
}

/// A weight for each of three heads of a wider projection.
fn heads(dtype: DType) -> Case {
    let (tokens, n, eps) = (9, 20, 1e-5);
    let x = Input::normal(190, &[tokens, 4, n], dtype, (0.0, 1.0));
    let w: Vec<Input> = (191..194).map(|seed| Input::normal(seed, &[n], dtype, (1.0, 0.3))).collect();
    let (rx, rw) = (x.clone(), w.clone());
    Case {
        op: "layer_norm",
        name: format!("{tokens} x 3 heads of {n}, a weight each"),
        dtype,
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 8.0 },
        flops: 8 * (tokens * 3 * n) as u64,
        prepare: Box::new(move |place| {
            let heads: Vec<_> = w.iter().map(|w| weights(&[("weight", w)], place)).collect();
            let (norm, x) = (LayerNorm::of_heads(&heads, n, eps)?, x.on(place)?.narrow(1, 1, 3)?);
            Ok(Box::new(move || norm.forward(&x)))
        }),
        reference: Box::new(move || {
            let head = |x, i: usize| {
                layer_norm(&Problem { x, residual: None, weight: &rw[i % 4 - 1].values, bias: None, eps })
            };
            let rows = rx.values.chunks(n).enumerate().filter(|(i, _)| i % 4 > 0);
            rows.flat_map(|(i, x)| head(x, i)).collect()
        }),
    }
}

type Shape = (usize, usize, bool, bool, (f32, f32));

fn one(seed: u64, dtype: DType, (rows, n, bias, residual, (centre, spread)): Shape) -> Case {
    let eps = if spread < 1.0 { 1e-5 } else { 1e-12 };
    let x = Input::normal(seed * 4 + 101, &[rows, n], dtype, (centre, spread));
    let r = residual.then(|| Input::normal(seed * 4 + 102, &[rows, n], dtype, (0.0, 1.0)));
    let w = Input::normal(seed * 4 + 103, &[n], dtype, (1.0, 0.3));
    let b = bias.then(|| Input::normal(seed * 4 + 104, &[n], dtype, (0.0, 0.3)));
    let (rx, rr, rw, rb) = (x.clone(), r.clone(), w.clone(), b.clone());
    let options = [(bias, " bias"), (residual, " residual"), (centre != 0.0, " off-centre"), (spread < 1.0, " small")];
    Case {
        op: "layer_norm",
        name: format!("{rows}x{n}{}", options.iter().filter(|o| o.0).map(|o| o.1).collect::<String>()),
        dtype,
        // Everything is in f32 and rounded once, composed too. Off-centre, the f32 subtraction of
        // the mean costs |mean| / spread roundings, 30 here, and the mean carries as many;
        // otherwise the sums cost a few.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 8.0 + 4.0 * f64::from(centre) },
        flops: 8 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let mut entries = vec![("weight", &w)];
            entries.extend(b.as_ref().map(|b| ("bias", b)));
            let norm = LayerNorm::load(&weights(&entries, place), n, eps, bias)?;
            let (x, r) = (x.on(place)?, r.as_ref().map(|r| r.on(place)).transpose()?);
            Ok(Box::new(move || norm.run(&x, r.as_ref())))
        }),
        reference: Box::new(move || {
            layer_norm(&Problem {
                x: &rx.values,
                residual: rr.as_ref().map(|r| &**r.values),
                weight: &rw.values,
                bias: rb.as_ref().map(|b| &**b.values),
                eps,
            })
        }),
    }
}
