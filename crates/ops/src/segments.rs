//! Packed batches: sequences one after another, with the places where they begin.

use crate::{Error, Result, replay, replay::Fill};
use std::ops::Range;
use std::sync::Arc;

/// Where each sequence of a packed batch lies (`cu_seqlens` in the literature). Nothing is ever padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    ends: Arc<[u32]>,
    /// Tokens that count, from the head of each sequence; all where there is none.
    heads: Option<Arc<[u32]>>,
    /// Sequences at the end that nobody asked for, and that may be empty: see [`Segments::filled`].
    fillers: usize,
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
        Ok(Segments { ends: ends.into(), heads: None, fillers: 0 })
    }

    /// The same, and sequences that fill it up: the first of them has the tokens that are missing, the others have none.
    pub fn filled(lengths: &[usize], fill: Fill) -> Result<Segments> {
        let own = Segments::new(lengths)?;
        if own.tokens() > fill.tokens || own.count() >= fill.sequences {
            return Err(Error::call("segments", format!("{lengths:?} filled up to {fill:?}")));
        }
        let fillers = fill.sequences - own.count();
        let ends = own.ends.iter().copied().chain(std::iter::repeat_n(fill.tokens as u32, fillers)).collect();
        Ok(Segments { ends, heads: None, fillers })
    }

    /// The first `lengths[i]` tokens of each sequence, where they are: what the rest of it may look at.
    pub fn heads(&self, lengths: &[usize]) -> Result<Segments> {
        let own = self.count() - self.fillers;
        let fits = |(i, n): (usize, &usize)| {
            let all = self.range(i).len();
            (1..=all).contains(n) || (i >= own && *n == all)
        };
        if lengths.len() != self.count() || !lengths.iter().enumerate().all(fits) {
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

    /// How many of them nobody asked for.
    pub fn fillers(&self) -> usize {
        self.fillers
    }

    /// Whether they are the same, and not only alike.
    pub(crate) fn is(&self, other: &Segments) -> bool {
        let heads = |s: &Segments| s.heads.as_ref().map(|heads| heads.as_ptr());
        Arc::ptr_eq(&self.ends, &other.ends) && heads(self) == heads(other)
    }

    /// How many tokens in all.
    pub fn tokens(&self) -> usize {
        self.ends[self.count()] as usize
    }

    /// Rows of sequence `i` that count.
    pub fn range(&self, i: usize) -> Range<usize> {
        replay::look();
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

    /// What a launch allows for: the length of the longest, or of all where they are filled up, so that it serves others of that
    /// shape.
    #[cfg(any(cuda, test))]
    pub(crate) fn bound(&self) -> usize {
        if self.fillers > 0 { self.tokens() } else { self.longest() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_filled_up() {
        let s = Segments::filled(&[3, 6], Fill { tokens: 16, sequences: 5 }).unwrap();
        assert_eq!(s.iter().collect::<Vec<_>>(), [0..3, 3..9, 9..16, 16..16, 16..16]);
        assert_eq!((s.count(), s.tokens(), s.fillers(), s.bound()), (5, 16, 3, 16));
        let heads = s.heads(&[3, 2, 7, 0, 0]).unwrap();
        assert_eq!(heads.range(1), 3..5);
        assert!(heads.is(&heads.clone()) && !heads.is(&s) && s.heads(&[3, 0, 7, 0, 0]).is_err());
        assert!(Segments::filled(&[16], Fill { tokens: 16, sequences: 2 }).unwrap().range(1).is_empty());
        assert!(Segments::filled(&[17], Fill { tokens: 16, sequences: 2 }).is_err());
        assert!(Segments::filled(&[1, 1], Fill { tokens: 16, sequences: 2 }).is_err());
    }

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
