//! The formula in f64.

pub(super) fn l2_norm(x: &[f32], n: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(n) {
        let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(f64::from(super::LEAST));
        y.extend(row.iter().map(|v| f64::from(*v) / length));
    }
    y
}
