//! The windows, element by element.

use crate::Segments;

pub(super) fn unfold(x: &[f32], n: usize, segments: &Segments, width: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for range in segments.observe().iter() {
        for t in range.clone() {
            for c in 0..n {
                for j in 0..width {
                    let from = (t + j) as i64 - (width / 2) as i64;
                    let inside = from >= range.start as i64 && from < range.end as i64;
                    y.push(if inside { f64::from(x[from as usize * n + c]) } else { 0.0 });
                }
            }
        }
    }
    y
}
