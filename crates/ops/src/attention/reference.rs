//! The formula in f64, one query at a time.

use super::Mask;
use crate::Segments;

pub(super) struct Problem<'a> {
    /// `[queries, heads, size]`
    pub(super) q: &'a [f32],
    /// `[keys, heads, size]`
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) heads: usize,
    pub(super) size: usize,
    pub(super) queries: &'a Segments,
    pub(super) keys: &'a Segments,
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
    pub(super) mask: Mask,
    /// Terms added before and after the scale, from the query's and key's positions in their
    /// sequence, the head, and both vectors.
    pub(super) added: &'a Added<'a>,
}

pub(super) type Added<'a> = dyn Fn(i64, i64, usize, &[f32], &[f32]) -> (f64, f64) + 'a;

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

pub(super) fn attention(p: &Problem<'_>) -> Vec<f64> {
    let of = |x, token: usize, head: usize| -> &[f32] {
        let x: &[f32] = x;
        &x[(token * p.heads + head) * p.size..][..p.size]
    };
    let mut y = Vec::new();
    for (queries, keys) in p.queries.observe().iter().zip(p.keys.observe().iter()) {
        for (i, head) in (0..queries.len()).flat_map(|i| (0..p.heads).map(move |h| (i, h))) {
            let q = of(p.q, queries.start + i, head);
            // With a causal mask, the last query is at the last key.
            let position = i + keys.len().saturating_sub(queries.len());
            let visible = |j: &usize| match p.mask {
                Mask::All => true,
                Mask::Window(reach) => j.abs_diff(i) <= reach,
                Mask::Causal => *j <= position,
                Mask::CausalWindow(most) => *j <= position && *j + most > position,
            };
            let i = if matches!(p.mask, Mask::Causal | Mask::CausalWindow(_)) { position } else { i };
            let visible: Vec<usize> = (0..keys.len()).filter(visible).collect();
            let score = |j: &usize| {
                let k = of(p.k, keys.start + j, head);
                let (before, after) = (p.added)(i as i64, *j as i64, head, q, k);
                let score = (dot(q, k) + before) * f64::from(p.scale);
                p.cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh()) + after
            };
            let scores: Vec<f64> = visible.iter().map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let sum: f64 = e.iter().sum();
            let value = |c: usize| -> f64 {
                visible.iter().zip(&e).map(|(j, e)| e / sum * f64::from(of(p.v, keys.start + j, head)[c])).sum()
            };
            y.extend((0..p.size).map(value));
        }
    }
    y
}
