//! The formula in f64.

use super::Gate;
use crate::Activation;

pub(super) fn glu(x: &[f32], n: usize, activation: Activation, gate: Gate) -> Vec<f64> {
    let row = |row: &[f32]| -> Vec<f64> {
        let (first, second) = row.split_at(n);
        let (gate, value) = if gate == Gate::First { (first, second) } else { (second, first) };
        gate.iter().zip(value).map(|(g, v)| activation.reference(f64::from(*g)) * f64::from(*v)).collect()
    };
    x.chunks(2 * n).flat_map(row).collect()
}
