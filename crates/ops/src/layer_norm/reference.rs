//! The formula in f64.

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) residual: Option<&'a [f32]>,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) eps: f32,
}

pub(super) fn layer_norm(p: &Problem<'_>) -> Vec<f64> {
    let n = p.weight.len();
    let sum = |i: usize| f64::from(p.x[i]) + p.residual.map_or(0.0, |r| f64::from(r[i]));
    let mut y = Vec::new();
    for row in 0..p.x.len() / n {
        let s: Vec<f64> = (row * n..(row + 1) * n).map(sum).collect();
        let mean = s.iter().sum::<f64>() / n as f64;
        let variance = s.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = (variance + f64::from(p.eps)).sqrt();
        let bias = |i: usize| p.bias.map_or(0.0, |b| f64::from(b[i]));
        y.extend(s.iter().enumerate().map(|(i, v)| (v - mean) / scale * f64::from(p.weight[i]) + bias(i)));
    }
    y
}
