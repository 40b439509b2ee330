//! Packed batches (varlen): sequences one after another without padding, and their offsets.

use crate::replay::{Fill, OpScope, PerBatch, op_scope};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Where each sequence of a packed batch lies (`cu_seqlens` in the literature). There is no
/// padding, except by [`Segments::filled`] for CUDA graphs.
///
/// The numbers of sequences and tokens are the batch's shape, which anyone may read. The lengths
/// differ between batches of one shape, and a CUDA graph captured for one of them is replayed for
/// the others. So only ops may read them directly:
///
/// ```compile_fail
/// let segments = sconce_ops::Segments::new(&[3, 1])?;
/// let rows = segments.lengths(sconce_ops::replay::op_scope()).range(0);
/// # Ok::<(), sconce_ops::Error>(())
/// ```
///
/// Other callers observe them, and a running capture becomes untracked:
///
/// ```
/// let segments = sconce_ops::Segments::new(&[3, 1])?;
/// assert_eq!(segments.observe().range(1), 3..4);
/// # Ok::<(), sconce_ops::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Segments {
    lengths: PerBatch<Lengths>,
    count: usize,
    tokens: usize,
    /// Filler sequences at the end, which may be empty: see [`Segments::filled`].
    fillers: usize,
}

/// The rows of each sequence.
#[derive(Clone, Debug)]
pub struct Lengths {
    ends: Arc<[u32]>,
    /// How many tokens count in each sequence, from its start; `None` if all do.
    heads: Option<Arc<[u32]>>,
}

impl Lengths {
    /// Rows of sequence `i` that count.
    pub fn range(&self, i: usize) -> Range<usize> {
        let start = self.ends[i] as usize;
        let end = self.heads.as_ref().map_or(self.ends[i + 1] as usize, |heads| start + heads[i] as usize);
        start..end
    }

    /// Rows of every sequence, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.ends.len() - 1).map(|i| self.range(i))
    }

    /// The length of the longest sequence.
    pub fn longest(&self) -> usize {
        self.iter().map(|range| range.len()).max().unwrap_or(0)
    }
}

impl Segments {
    /// From the lengths, each at least one.
    pub fn new(lengths: &[usize]) -> Result<Segments> {
        Ok(Segments::of(ends(lengths)?, None, 0))
    }

    /// The same, filled up to a fixed shape: the first filler sequence has the missing tokens, the
    /// others are empty.
    pub fn filled(lengths: &[usize], fill: Fill) -> Result<Segments> {
        let mut ends = ends(lengths)?;
        if ends[lengths.len()] as usize > fill.tokens || lengths.len() >= fill.sequences {
            return Err(Error::call("segments", format!("cannot pad lengths {lengths:?} to {fill:?}")));
        }
        ends.resize(fill.sequences + 1, fill.tokens as u32);
        Ok(Segments::of(ends, None, fill.sequences - lengths.len()))
    }

    fn of(ends: impl Into<Arc<[u32]>>, heads: Option<Arc<[u32]>>, fillers: usize) -> Segments {
        let ends = ends.into();
        let (count, tokens) = (ends.len() - 1, ends[ends.len() - 1] as usize);
        Segments { lengths: PerBatch::new(Lengths { ends, heads }), count, tokens, fillers }
    }

    /// The same batch in which only the first `lengths[i]` tokens of each sequence count, for
    /// queries that may attend to no others.
    pub fn heads(&self, lengths: &[usize]) -> Result<Segments> {
        let (all, first_filler) = (self.observe(), self.count - self.fillers);
        let fits = |(i, n): (usize, &usize)| {
            let all = all.range(i).len();
            (1..=all).contains(n) || (i >= first_filler && *n == all)
        };
        if lengths.len() != self.count || !lengths.iter().enumerate().all(fits) {
            let what =
                format!("cannot take the first {lengths:?} tokens of sequences that end at {:?}", &all.ends[1..]);
            return Err(Error::call("segments", what));
        }
        if lengths.iter().zip(all.iter()).all(|(n, range)| *n == range.len()) {
            return Ok(self.clone());
        }
        let heads = lengths.iter().map(|n| *n as u32).collect();
        Ok(Segments::of(all.ends.clone(), Some(heads), self.fillers))
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of filler sequences.
    pub fn fillers(&self) -> usize {
        self.fillers
    }

    /// Number of tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The lengths, for an op.
    pub fn lengths(&self, scope: OpScope) -> &Lengths {
        self.lengths.get(scope)
    }

    /// The lengths, for other callers. A running capture becomes untracked.
    pub fn observe(&self) -> &Lengths {
        self.lengths.observe()
    }

    /// Whether both are the same object, not only equal.
    pub(crate) fn is(&self, other: &Segments) -> bool {
        // Compares pointers only, so the capture stays tracked.
        let (ours, other) = (self.lengths(op_scope()), other.lengths(op_scope()));
        let heads = |lengths: &Lengths| lengths.heads.as_ref().map(|heads| heads.as_ptr());
        Arc::ptr_eq(&ours.ends, &other.ends) && heads(ours) == heads(other)
    }

    /// The length that a launch is sized for: that of the longest sequence, or all tokens of a
    /// filled batch, so that the launch fits every batch of that shape.
    #[cfg(any(cuda, test))]
    pub(crate) fn bound(&self, scope: OpScope) -> usize {
        if self.fillers > 0 { self.tokens } else { self.lengths(scope).longest() }
    }
}

/// The offset of each sequence's end, after a leading zero.
fn ends(lengths: &[usize]) -> Result<Vec<u32>> {
    let mut ends = vec![0u32];
    for length in lengths {
        let end = ends[ends.len() - 1];
        let next = u32::try_from(*length).ok().filter(|n| *n > 0).and_then(|n| end.checked_add(n));
        ends.push(next.ok_or_else(|| {
            let what = format!("cannot pack {length} tokens after {end}: a sequence has at least 1, all at most 2³²−1");
            Error::call("segments", what)
        })?);
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_segments_have_padding_sequences() {
        let s = Segments::filled(&[3, 6], Fill { tokens: 16, sequences: 5 }).unwrap();
        assert_eq!(s.observe().iter().collect::<Vec<_>>(), [0..3, 3..9, 9..16, 16..16, 16..16]);
        assert_eq!((s.count(), s.tokens(), s.fillers(), s.bound(op_scope())), (5, 16, 3, 16));
        let heads = s.heads(&[3, 2, 7, 0, 0]).unwrap();
        assert_eq!(heads.observe().range(1), 3..5);
        assert!(heads.is(&heads.clone()) && !heads.is(&s) && s.heads(&[3, 0, 7, 0, 0]).is_err());
        assert!(Segments::filled(&[16], Fill { tokens: 16, sequences: 2 }).unwrap().observe().range(1).is_empty());
        assert!(Segments::filled(&[17], Fill { tokens: 16, sequences: 2 }).is_err());
        assert!(Segments::filled(&[1, 1], Fill { tokens: 16, sequences: 2 }).is_err());
    }

    #[test]
    fn segments_are_consecutive_and_empty_sequences_are_refused() {
        let s = Segments::new(&[3, 1, 5]).unwrap();
        assert_eq!(s.observe().iter().collect::<Vec<_>>(), [0..3, 3..4, 4..9]);
        assert_eq!((s.count(), s.tokens()), (3, 9));
        let heads = s.heads(&[2, 1, 1]).unwrap();
        assert_eq!(heads.observe().iter().collect::<Vec<_>>(), [0..2, 3..4, 4..5]);
        assert_eq!((heads.tokens(), heads.observe().longest(), s.observe().longest()), (9, 2, 5));
        assert!(s.heads(&[4, 1, 1]).is_err() && s.heads(&[1, 1, 0]).is_err() && s.heads(&[1, 1]).is_err());
        assert!(Segments::new(&[2, 0]).is_err());
        assert!(Segments::new(&[u32::MAX as usize, 1]).is_err());
    }
}
