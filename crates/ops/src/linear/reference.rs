//! y = act(x · Wᵀ + b) in f64.

use super::Activation;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) k: usize,
    pub(super) activation: Activation,
}

pub(super) fn linear(p: &Problem<'_>) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut y = Vec::new();
    for x in p.x.chunks(p.k) {
        for (j, w) in p.w.chunks(p.k).enumerate() {
            y.push(activate(p.activation, dot(x, w) + p.bias.map_or(0.0, |b| f64::from(b[j]))));
        }
    }
    y
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}
