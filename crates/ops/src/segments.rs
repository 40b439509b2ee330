//! Packed batches: sequences one after another, with the places where they begin.

use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Where each sequence of a packed batch lies (`cu_seqlens` in the literature). Nothing is ever padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    ends: Arc<[u32]>,
    /// Tokens that count, from the head of each sequence; all where there is none.
    heads: Option<Arc<[u32]>>,
}

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
        Ok(Segments { ends: ends.into(), heads: None })
    }

    /// The first `lengths[i]` tokens of each sequence, where they are: what the rest of it may look at.
    pub fn heads(&self, lengths: &[usize]) -> Result<Segments> {
        let fits = |(n, range): (&usize, Range<usize>)| (1..=range.len()).contains(n);
        if lengths.len() != self.count() || !lengths.iter().zip(self.iter()).all(fits) {
            return Err(Error::call(
                "segments",
                format!("heads of {lengths:?} tokens in sequences of {:?}", self.ends),
            ));
        }
        if lengths.iter().zip(self.iter()).all(|(n, range)| *n == range.len()) {
            return Ok(self.clone());
        }
        Ok(Segments { heads: Some(lengths.iter().map(|n| *n as u32).collect()), ..self.clone() })
    }

    /// How many sequences.
    pub fn count(&self) -> usize {
        self.ends.len() - 1
    }

    /// How many tokens in all.
    pub fn tokens(&self) -> usize {
        self.ends[self.count()] as usize
    }

    /// Rows of sequence `i` that count.
    pub fn range(&self, i: usize) -> Range<usize> {
        let start = self.ends[i] as usize;
        let end = self.heads.as_ref().map_or(self.ends[i + 1] as usize, |heads| start + heads[i] as usize);
        start..end
    }

    /// Rows of every sequence, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.count()).map(|i| self.range(i))
    }

    /// The length of the longest.
    pub fn longest(&self) -> usize {
        self.iter().map(|range| range.len()).max().unwrap_or(0)
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
        let heads = s.heads(&[2, 1, 1]).unwrap();
        assert_eq!(heads.iter().collect::<Vec<_>>(), [0..2, 3..4, 4..5]);
        assert_eq!((heads.tokens(), heads.longest(), s.longest()), (9, 2, 5));
        assert!(s.heads(&[4, 1, 1]).is_err() && s.heads(&[1, 1, 0]).is_err() && s.heads(&[1, 1]).is_err());
        assert!(Segments::new(&[2, 0]).is_err());
        assert!(Segments::new(&[u32::MAX as usize, 1]).is_err());
    }
}
