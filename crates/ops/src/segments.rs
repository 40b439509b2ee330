//! Packed batches: sequences one after another, with the places where they begin.

use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Where each sequence of a packed batch lies (`cu_seqlens` in the literature). Nothing is ever padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments(Arc<[u32]>);

impl Segments {
    /// From the lengths, each at least one.
    pub fn new(lengths: &[usize]) -> Result<Segments> {
        let mut ends = vec![0u32];
        let mut end = 0u32;
        for length in lengths {
            let next = u32::try_from(*length).ok().filter(|n| *n > 0).and_then(|n| end.checked_add(n));
            end = next.ok_or_else(|| {
                Error::call(
                    "segments",
                    format!("a sequence of {length} tokens after {end}: each needs 1, all at most 2³²−1"),
                )
            })?;
            ends.push(end);
        }
        Ok(Segments(ends.into()))
    }

    /// How many sequences.
    pub fn count(&self) -> usize {
        self.0.len() - 1
    }

    /// How many tokens in all.
    pub fn tokens(&self) -> usize {
        self.0[self.count()] as usize
    }

    /// Rows of sequence `i`.
    pub fn range(&self, i: usize) -> Range<usize> {
        self.0[i] as usize..self.0[i + 1] as usize
    }

    /// Rows of every sequence, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.count()).map(|i| self.range(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_each_other_and_empty_sequences_are_refused() {
        let s = Segments::new(&[3, 1, 5]).unwrap();
        assert_eq!(s.iter().collect::<Vec<_>>(), [0..3, 3..4, 4..9]);
        assert_eq!((s.count(), s.tokens()), (3, 9));
        assert!(Segments::new(&[2, 0]).is_err());
        assert!(Segments::new(&[u32::MAX as usize, 1]).is_err());
    }
}
