//! The formula in f64.

use crate::Activation;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    /// `[experts, n]`
    pub(super) router: &'a [f32],
    /// `[experts, inner, n]`, or with gates before each expert's rows `[experts, 2, inner, n]`.
    pub(super) up: &'a [f32],
    /// `[experts, inner, n]`: rows are inputs.
    pub(super) down: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) experts: usize,
    pub(super) inner: usize,
    pub(super) top: usize,
    pub(super) activation: Activation,
    /// With gates, renormalized probabilities, and x added as residual.
    pub(super) gated: bool,
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
        let selected_sum: f64 = order[..q.top].iter().map(|e| p[*e]).sum();
        for e in &order[..q.top] {
            let p = if q.gated { p[*e] / selected_sum } else { p[*e] };
            for i in 0..q.inner {
                let inner = if q.gated {
                    let row = (2 * e * q.inner + i) * n;
                    q.activation.reference(logit(&q.up[row..])) * logit(&q.up[row + q.inner * n..])
                } else {
                    q.activation.reference(logit(&q.up[(e * q.inner + i) * n..]))
                };
                let row = (e * q.inner + i) * n;
                sum.iter_mut().zip(&q.down[row..]).for_each(|(s, w)| *s += inner * p * f64::from(*w));
            }
        }
        if q.gated {
            sum.iter_mut().zip(x).for_each(|(s, x)| *s += f64::from(*x));
        }
        y.extend(sum);
    }
    y
}
