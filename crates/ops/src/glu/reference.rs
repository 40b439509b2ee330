//! The formula in f64.

use super::Gate;
use crate::Activation;

/// act(x).
pub(super) fn activate(x: &[f32], activation: Activation) -> Vec<f64> {
    x.iter().map(|v| activation.reference(f64::from(*v))).collect()
}

/// `scales` has one element per row.
pub(super) fn glu(x: &[f32], scales: &[f32], activation: Activation, gate: Gate) -> Vec<f64> {
    let n = x.len() / scales.len() / 2;
    let row = |(row, scale): (&[f32], &f32)| -> Vec<f64> {
        let (first, second) = row.split_at(n);
        let (gate, value) = if gate == Gate::First { (first, second) } else { (second, first) };
        let product = |(g, v): (&f32, &f32)| activation.reference(f64::from(*g)) * f64::from(*v) * f64::from(*scale);
        gate.iter().zip(value).map(product).collect()
    };
    x.chunks(2 * n).zip(scales).flat_map(row).collect()
}
