//! Dense search: codes first, then the vectors themselves.

use super::candidates::{Best, Passes};
use super::segments::SegmentSet;
use crate::codes::{Candidate, ScanOptions, scan};
use crate::error::Result;
use crate::store::{Reader, dot_stored};

/// The chunks whose vectors have the greatest product with `query`, a vector of length 1. Exact for
/// chunks that no codes cover; for others the codes choose candidates, and the product is exact.
pub(super) fn dense(
    reader: &Reader<'_>,
    set: &SegmentSet,
    (query, passes): (&[f32], &Passes<'_>),
    (count, threads): (usize, usize),
) -> Result<Vec<(i64, f32)>> {
    let mut best = Best::new(count);
    if !set.segments.is_empty() {
        let options = ScanOptions { k: count, threads, allowed: passes.rows().map(<[_]>::to_vec) };
        let mut candidates = scan(&set.segments, query, &options)?;
        // The first ones show which of the others can still be among the best: each that is not read
        // saves a page of the database.
        let mut others = candidates.split_off(count.min(candidates.len()));
        rescore(reader, &mut candidates, query, &mut best)?;
        others.retain(|other| best.takes(other.chunk, other.score + other.error));
        rescore(reader, &mut others, query, &mut best)?;
    }
    for gap in &set.gaps {
        reader.each_vector(gap.clone(), |chunk, bytes| {
            let score = dot_stored(bytes, query);
            if best.takes(chunk, score) && passes.chunk(chunk)? {
                best.push(chunk, score);
            }
            Ok(())
        })?;
    }
    Ok(best.into_sorted())
}

/// Scores candidates by their vectors.
fn rescore(reader: &Reader<'_>, candidates: &mut [Candidate], query: &[f32], best: &mut Best) -> Result<()> {
    // Neighbours in the database are read together.
    candidates.sort_unstable_by_key(|candidate| candidate.chunk);
    for candidate in candidates {
        if let Some(score) = reader.vector(candidate.chunk, |bytes| dot_stored(bytes, query))? {
            best.push(candidate.chunk, score);
        }
    }
    Ok(())
}
