//! The formula in f64.

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) residual: Option<&'a [f32]>,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) eps: f32,
}

pub(super) fn layer_norm(p: &Problem<'_>) -> Vec<f64> {
    let sum = |(i, x): (usize, &f32)| f64::from(*x) + p.residual.map_or(0.0, |r| f64::from(r[i]));
    of_sums(&p.x.iter().enumerate().map(sum).collect::<Vec<_>>(), p.weight, p.bias, p.eps)
}

/// The norm of rows that were summed elsewhere.
pub(crate) fn of_sums(sums: &[f64], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let n = weight.len();
    let row = |s: &[f64]| {
        let mean = s.iter().sum::<f64>() / n as f64;
        let variance = s.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = (variance + f64::from(eps)).sqrt();
        let bias = |i: usize| bias.map_or(0.0, |b| f64::from(b[i]));
        let one = |(i, v): (usize, &f64)| (v - mean) / scale * f64::from(weight[i]) + bias(i);
        s.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    sums.chunks(n).flat_map(row).collect()
}
