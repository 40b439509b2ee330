//! The formula in f64.

use crate::Activation;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    /// `[experts, n]`
    pub(super) router: &'a [f32],
    /// `[experts, inner, n]`
    pub(super) up: &'a [f32],
    /// `[experts, inner, n]`: rows are inputs.
    pub(super) down: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) experts: usize,
    pub(super) inner: usize,
    pub(super) top: usize,
    pub(super) activation: Activation,
}

pub(super) fn experts(q: &Problem<'_>) -> Vec<f64> {
    let n = q.bias.len();
    let mut y = Vec::new();
    for x in q.x.chunks(n) {
        let logit = |w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        let e: Vec<f64> = q.router.chunks(n).map(|w| logit(w).exp()).collect();
        let p: Vec<f64> = e.iter().map(|v| v / e.iter().sum::<f64>()).collect();
        let mut order: Vec<usize> = (0..q.experts).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let mut sum: Vec<f64> = q.bias.iter().map(|b| f64::from(*b)).collect();
        for e in &order[..q.top] {
            for i in 0..q.inner {
                let row = (e * q.inner + i) * n;
                let dot: f64 = x.iter().zip(&q.up[row..]).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let act = q.activation.reference(dot) * p[*e];
                sum.iter_mut().zip(&q.down[row..]).for_each(|(s, w)| *s += act * f64::from(*w));
            }
        }
        y.extend(sum);
    }
    y
}
