//! The formula in f64.

use super::Splade;
use crate::Segments;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) k: usize,
    pub(super) segments: &'a Segments,
    pub(super) options: Splade,
}

pub(super) fn splade(p: &Problem<'_>) -> Vec<f64> {
    let mut y = Vec::new();
    for range in p.segments.observe().iter() {
        for (w, b) in p.w.chunks(p.k).zip(p.bias) {
            let weights = range.clone().map(|t| {
                let x = &p.x[t * p.k..][..p.k];
                let logit = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() + f64::from(*b);
                let weight = (1.0 + logit.max(0.0)).ln();
                if p.options.twice { (1.0 + weight).ln() } else { weight }
            });
            y.push(if p.options.sum { weights.sum() } else { weights.fold(0.0, f64::max) });
        }
    }
    y
}
