//! Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).

use std::collections::HashMap;

use super::candidates::sort;

/// The constant of the paper: how much the first places are worth more than those after them.
const K: f32 = 60.0;

/// Joins rankings: a hit scores the sum of 1 / (60 + its place) over the rankings that have it.
pub(super) fn fuse(rankings: &[&[(i64, f32)]]) -> Vec<(i64, f32)> {
    let mut scores: HashMap<i64, f32> = HashMap::new();
    for ranking in rankings {
        for (i, (chunk, _)) in ranking.iter().enumerate() {
            *scores.entry(*chunk).or_default() += 1.0 / (K + (i + 1) as f32);
        }
    }
    let mut fused: Vec<_> = scores.into_iter().collect();
    sort(&mut fused);
    fused
}

#[test]
fn what_several_rankings_have_comes_first() {
    let fused = fuse(&[&[(1, 9.0), (2, 8.0), (3, 7.0)], &[(3, 0.5), (4, 0.25)]]);
    assert_eq!(fused.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), [3, 1, 2, 4]);
    assert_eq!(fused[0].1, 1.0 / 63.0 + 1.0 / 61.0);
    assert!(fuse(&[]).is_empty());
}
