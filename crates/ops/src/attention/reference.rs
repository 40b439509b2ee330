//! The formula in f64, one query at a time.

use crate::Segments;

pub(super) struct Problem<'a> {
    /// `[tokens, 3, heads, size]`
    pub(super) qkv: &'a [f32],
    pub(super) heads: usize,
    pub(super) size: usize,
    pub(super) segments: &'a Segments,
    pub(super) scale: f32,
}

pub(super) fn attention(p: &Problem<'_>) -> Vec<f64> {
    let at = |which: usize, token: usize, head: usize| {
        let start = ((token * 3 + which) * p.heads + head) * p.size;
        &p.qkv[start..start + p.size]
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut y = Vec::new();
    for range in p.segments.iter() {
        for (query, head) in range.clone().flat_map(|t| (0..p.heads).map(move |h| (t, h))) {
            let scores: Vec<f64> =
                range.clone().map(|key| dot(at(0, query, head), at(1, key, head)) * f64::from(p.scale)).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let sum: f64 = e.iter().sum();
            let value = |c: usize| -> f64 {
                range.clone().zip(&e).map(|(key, e)| e / sum * f64::from(at(2, key, head)[c])).sum()
            };
            y.extend((0..p.size).map(value));
        }
    }
    y
}
