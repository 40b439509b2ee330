//! y = act(x · Wᵀ + b) + residual in f64.

use crate::Activation;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) k: usize,
    pub(super) activation: Activation,
    pub(super) residual: Option<&'a [f32]>,
}

pub(super) fn linear(p: &Problem<'_>) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut y = Vec::new();
    for x in p.x.chunks(p.k) {
        for (j, w) in p.w.chunks(p.k).enumerate() {
            let act = p.activation.reference(dot(x, w) + p.bias.map_or(0.0, |b| f64::from(b[j])));
            y.push(act + p.residual.map_or(0.0, |r| f64::from(r[y.len()])));
        }
    }
    y
}
