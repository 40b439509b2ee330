//! Late interaction (ColBERT, Khattab and Zaharia 2020) over candidates.

use super::candidates::sort;
use crate::error::Result;
use crate::store::{Reader, f16_values};

/// The candidates by their MaxSim score: the sum over the query's vectors of their best match.
pub(super) fn late_interaction(
    reader: &Reader<'_>,
    (query, dimensions): (&[f32], usize),
    candidates: impl IntoIterator<Item = i64>,
) -> Result<Vec<(i64, f32)>> {
    let mut hits = Vec::new();
    for chunk in candidates {
        if let Some(bytes) = reader.multi_vector(chunk)? {
            hits.push((chunk, max_sim(query, &f16_values(&bytes), dimensions)));
        }
    }
    hits.retain(|(_, score)| !score.is_nan());
    sort(&mut hits);
    Ok(hits)
}

/// 0 for a passage without vectors.
fn max_sim(query: &[f32], passage: &[f32], dimensions: usize) -> f32 {
    let rows = |values| <[f32]>::chunks_exact(values, dimensions.max(1));
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let best = |q: &[f32]| rows(passage).map(|p| dot(q, p)).reduce(f32::max).unwrap_or(0.0);
    rows(query).map(best).sum()
}

#[test]
fn max_sim_sums_the_best_matches() {
    let (query, passage) = ([1.0, 0.0, 0.0, 1.0], [0.5, 0.0, 0.25, 1.0, -1.0, -1.0]);
    assert_eq!(max_sim(&query, &passage, 2), 1.5);
    assert_eq!(max_sim(&query, &[], 2), 0.0);
    assert_eq!(max_sim(&query, &[-0.5, -0.25], 2), -0.75);
}
