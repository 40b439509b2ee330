//! Which rows of k and v are the keys of each sequence: next to each other, or in pages of a cache.

use super::tables::ALONE;
use crate::{Error, Result, Segments};
use std::ops::Range;
use std::sync::Arc;

/// The rows of k and v that the queries of the same number look at.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Sequences one after another.
    Packed(Segments),
    /// Rows of a cache, page by page.
    Paged(Pages),
}

/// Sequences in pages of a cache (Kwon et al. 2023, arXiv:2309.06180): a table of page numbers each.
#[derive(Clone, Debug)]
pub struct Pages {
    tables: Arc<[Arc<[u32]>]>,
    lengths: Arc<[usize]>,
    /// Rows of a page.
    size: usize,
}

impl Pages {
    /// From each sequence's table and its length in tokens; the last page need not be full.
    pub fn new(sequences: Vec<(Arc<[u32]>, usize)>, size: usize) -> Result<Pages> {
        for (table, length) in &sequences {
            if *length == 0 || table.len().saturating_mul(size) < *length {
                let what = format!("{length} tokens in {} pages of {size}", table.len());
                return Err(Error::call("pages", what));
            }
        }
        let (tables, lengths): (Vec<_>, Vec<_>) = sequences.into_iter().unzip();
        Ok(Pages { tables: tables.into(), lengths: lengths.into(), size })
    }

    /// Rows of a page.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Pages of a sequence that a table has room for, so that it serves others: see [`Keys::bound`].
    pub(super) fn room(&self) -> usize {
        let most = self.tables.iter().map(|table| table.len()).max().unwrap_or(0);
        most.max(ALONE.div_ceil(self.size)).next_power_of_two()
    }

    /// The pages of sequence `i`.
    pub(super) fn table(&self, i: usize) -> &[u32] {
        &self.tables[i]
    }

    /// The row of the cache that token `j` of sequence `i` is in.
    pub fn row(&self, i: usize, j: usize) -> usize {
        self.tables[i][j / self.size] as usize * self.size + j % self.size
    }
}

impl From<Segments> for Keys {
    fn from(segments: Segments) -> Keys {
        Keys::Packed(segments)
    }
}

impl Keys {
    /// Whether they are these.
    pub(crate) fn is(&self, segments: &Segments) -> bool {
        matches!(self, Keys::Packed(own) if own.is(segments))
    }

    /// Whether they are the same, and not only alike.
    #[cfg(cuda)]
    pub(crate) fn are(&self, others: &Keys) -> bool {
        match (self, others) {
            (Keys::Packed(own), Keys::Packed(others)) => own.is(others),
            (Keys::Paged(own), Keys::Paged(others)) => Arc::ptr_eq(&own.tables, &others.tables),
            _ => false,
        }
    }

    /// What a launch allows for, so that it serves others: the most keys of a sequence, in pages the next power of two. Few keys are
    /// one part at any rate, so that one launch serves all of them: a decoder with two kinds of keys has one for each pair of bounds.
    pub(super) fn bound(&self) -> usize {
        self.allowed(self.longest())
    }

    /// The same for some of the sequences, of which the longest has so many keys.
    pub(super) fn allowed(&self, longest: usize) -> usize {
        match self {
            Keys::Packed(segments) if segments.fillers() > 0 => segments.tokens(),
            Keys::Packed(_) => longest,
            Keys::Paged(_) => longest.max(ALONE).next_power_of_two(),
        }
    }

    /// How many sequences.
    pub(super) fn count(&self) -> usize {
        match self {
            Keys::Packed(segments) => segments.count(),
            Keys::Paged(pages) => pages.lengths.len(),
        }
    }

    /// Keys of sequence `i`.
    pub(super) fn len(&self, i: usize) -> usize {
        match self {
            Keys::Packed(segments) => segments.range(i).len(),
            Keys::Paged(pages) => pages.lengths[i],
        }
    }

    /// The most keys of a sequence.
    pub(super) fn longest(&self) -> usize {
        (0..self.count()).map(|i| self.len(i)).max().unwrap_or(0)
    }

    /// Whether every key is one of `rows` rows.
    pub(super) fn within(&self, rows: usize) -> bool {
        match self {
            Keys::Packed(segments) => segments.tokens() == rows,
            Keys::Paged(p) => p.tables.iter().all(|t| t.iter().all(|page| (*page as usize + 1) * p.size <= rows)),
        }
    }

    /// Runs of rows next to each other that hold keys `keys` of sequence `i`, in order.
    pub(super) fn runs(&self, i: usize, keys: Range<usize>) -> Vec<Range<usize>> {
        match self {
            Keys::Packed(segments) => {
                let start = segments.range(i).start;
                std::iter::once(start + keys.start..start + keys.end).collect()
            }
            Keys::Paged(p) => {
                let mut runs: Vec<Range<usize>> = Vec::new();
                let mut key = keys.start;
                while key < keys.end {
                    let n = (p.size - key % p.size).min(keys.end - key);
                    let row = p.row(i, key);
                    match runs.last_mut() {
                        Some(run) if run.end == row => run.end += n,
                        _ => runs.push(row..row + n),
                    }
                    key += n;
                }
                runs
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_next_to_each_other_are_one_run() {
        let pages = Pages::new(vec![([4, 5, 1].into(), 10), ([0].into(), 2)], 4).unwrap();
        assert_eq!((pages.row(0, 0), pages.row(0, 9), pages.row(1, 1)), (16, 5, 1));
        let keys = Keys::Paged(pages);
        assert_eq!(keys.runs(0, 0..10), [16..24, 4..6]);
        assert_eq!(keys.runs(0, 3..7).first(), Some(&(19..23)));
        assert!(keys.within(24) && !keys.within(23));
        assert_eq!((keys.len(0), keys.longest(), keys.count()), (10, 10, 2));
        assert!(Pages::new(vec![([1].into(), 5)], 4).is_err() && Pages::new(vec![([1].into(), 0)], 4).is_err());
    }
}
