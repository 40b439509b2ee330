//! The formula in f64.

use crate::Segments;

/// The inputs of a case: the gates' inputs `[tokens, 8 · hidden]` and the weight `[4 · hidden,
/// hidden]` of each direction.
pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) weights: [&'a [f32]; 2],
    pub(super) hidden: usize,
    pub(super) segments: &'a Segments,
}

pub(super) fn lstm(problem: &Problem<'_>) -> Vec<f64> {
    let Problem { x, weights, hidden, segments } = problem;
    let n = *hidden;
    let mut y = vec![0.0; segments.tokens() * 2 * n];
    for range in segments.observe().iter() {
        for (direction, w) in weights.iter().enumerate() {
            let (mut h, mut c) = (vec![0.0; n], vec![0.0; n]);
            let tokens: Vec<usize> =
                if direction == 0 { range.clone().collect() } else { range.clone().rev().collect() };
            for token in tokens {
                let gate = |gate: usize, unit: usize| {
                    let row = &w[(gate * n + unit) * n..][..n];
                    let own = f64::from(x[token * 8 * n + direction * 4 * n + gate * n + unit]);
                    own + row.iter().zip(&h).map(|(w, h)| f64::from(*w) * h).sum::<f64>()
                };
                let gates: Vec<[f64; 4]> = (0..n).map(|unit| [0, 1, 2, 3].map(|g| gate(g, unit))).collect();
                for (unit, [i, f, g, o]) in gates.into_iter().enumerate() {
                    c[unit] = sigmoid(f) * c[unit] + sigmoid(i) * g.tanh();
                    h[unit] = sigmoid(o) * c[unit].tanh();
                    y[token * 2 * n + direction * n + unit] = h[unit];
                }
            }
        }
    }
    y
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
