//! The formula in f64.

pub(super) fn l2_norm(x: &[f32], n: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(n) {
        let norm = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(f64::from(super::MIN_NORM));
        y.extend(row.iter().map(|v| f64::from(*v) / norm));
    }
    y
}
