//! The formula in f64.

pub(super) fn rms_norm(x: &[f32], w: &[f64], eps: f32) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(w.len()) {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / w.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        y.extend(row.iter().zip(w).map(|(v, w)| f64::from(*v) * scale * w));
    }
    y
}
