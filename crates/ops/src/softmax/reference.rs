//! The formula in f64.

pub(super) fn softmax(x: &[f32], n: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(n) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = row.iter().map(|v| (f64::from(*v) - f64::from(largest)).exp()).collect();
        let sum: f64 = e.iter().sum();
        y.extend(e.iter().map(|e| e / sum));
    }
    y
}
