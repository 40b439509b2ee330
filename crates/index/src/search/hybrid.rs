//! Hybrid search: a weighted sum of two rankings' scores, each divided by the ranking's best score
//! (a convex combination; Bruch, Gai and Ingber 2023, arXiv:2210.11934).
//!
//! benches/index/fusion.py chose sum and weight on one half of its queries. On the other half it is at
//! least as good as BM25 and embeddings alone, and as every reciprocal rank fusion that was tried.

use std::collections::HashMap;

use super::candidates::sort;

/// The weight of the ranking by embeddings; BM25 has the rest.
const EMBEDDINGS: f32 = 0.2;

/// Joins the ranking by BM25 and one by embeddings. Scores are 0 to 1: a passage that is the best of
/// both has 1, and a ranking that lacks a passage gives it nothing.
pub(super) fn fuse(words: &[(i64, f32)], embeddings: &[(i64, f32)]) -> Vec<(i64, f32)> {
    let mut scores: HashMap<i64, f32> = HashMap::new();
    for (ranking, weight) in [(words, 1.0 - EMBEDDINGS), (embeddings, EMBEDDINGS)] {
        // Cosines may all be negative.
        let best = ranking.first().map_or(0.0, |(_, score)| score.max(f32::MIN_POSITIVE));
        for (chunk, score) in ranking {
            *scores.entry(*chunk).or_default() += weight * (score / best).max(0.0);
        }
    }
    let mut fused: Vec<_> = scores.into_iter().collect();
    sort(&mut fused);
    fused
}

#[test]
fn scores_are_relative_to_the_best_of_each_ranking() {
    let fused = fuse(&[(1, 9.0), (2, 8.0), (3, 3.0)], &[(2, 0.5), (4, 0.25), (5, -0.1)]);
    assert_eq!(fused.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), [2, 1, 3, 4, 5]);
    assert!((fused[0].1 - (0.8 * 8.0 / 9.0 + 0.2)).abs() < 1e-6 && fused[4].1 == 0.0, "{fused:?}");
    assert_eq!(fuse(&[(7, 2.0)], &[(7, 0.4)]), [(7, 1.0)]);
    assert_eq!(fuse(&[], &[(8, 0.4), (9, 0.2)]), [(8, 0.2), (9, 0.1)]);
    assert_eq!(fuse(&[], &[(8, -0.4), (9, -0.5)]), [(8, 0.0), (9, 0.0)]);
    assert!(fuse(&[], &[]).is_empty());
}
