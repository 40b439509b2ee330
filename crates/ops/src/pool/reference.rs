//! The formulas in f64.

use super::Pooling;
use crate::Segments;

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) n: usize,
    pub(super) segments: &'a Segments,
    pub(super) skip: &'a [usize],
    pub(super) modes: &'a [Pooling],
}

pub(super) fn pool(p: &Problem<'_>) -> Vec<f64> {
    let mut y = Vec::new();
    for (range, skip) in p.segments.observe().iter().zip(p.skip) {
        let tokens: Vec<(f64, &[f32])> =
            (0..range.len()).skip(*skip).map(|i| ((i + 1) as f64, &p.x[(range.start + i) * p.n..][..p.n])).collect();
        let count = tokens.len() as f64;
        let weights: f64 = tokens.iter().map(|(w, _)| w).sum();
        for mode in p.modes {
            y.extend((0..p.n).map(|c| {
                let column = || tokens.iter().map(|(w, x)| (*w, f64::from(x[c])));
                let sum: f64 = column().map(|(_, x)| x).sum();
                match mode {
                    Pooling::Cls => column().next().map_or(f64::NAN, |(_, x)| x),
                    Pooling::LastToken => column().next_back().map_or(f64::NAN, |(_, x)| x),
                    Pooling::Max => column().map(|(_, x)| x).fold(f64::NEG_INFINITY, f64::max),
                    Pooling::Mean => sum / count,
                    Pooling::MeanSqrtLen => sum / count.sqrt(),
                    Pooling::WeightedMean => column().map(|(w, x)| w * x).sum::<f64>() / weights,
                }
            }));
        }
    }
    y
}
