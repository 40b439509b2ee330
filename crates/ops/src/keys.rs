//! Which rows of k and v are the keys of each sequence: next to each other, or in pages of a cache.

use crate::replay::{OpScope, PerBatch};
use crate::{Error, Result, Segments};
use std::ops::Range;
use std::sync::Arc;

/// Keys up to which a sequence is one part of a launch. As in `attention/task.cuh`.
pub(crate) const ALONE: usize = 128;

/// The rows of k and v that the queries of the same number look at.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Sequences one after another.
    Packed(Segments),
    /// Rows of a cache, page by page.
    Paged(Pages),
}

/// Sequences in pages of a cache (Kwon et al. 2023, arXiv:2309.06180): a table of page numbers
/// each. Who may read which is as with [`Segments`].
#[derive(Clone, Debug)]
pub struct Pages {
    tables: PerBatch<PageTables>,
    count: usize,
    /// Rows of a page.
    size: usize,
}

/// The pages of each sequence.
#[derive(Clone, Debug)]
pub struct PageTables {
    tables: Arc<[Arc<[u32]>]>,
    lengths: Arc<[usize]>,
    size: usize,
}

impl PageTables {
    /// Tokens of sequence `i`.
    pub fn len(&self, i: usize) -> usize {
        self.lengths[i]
    }

    /// The row of the cache that token `j` of sequence `i` is in.
    pub fn row(&self, i: usize, j: usize) -> usize {
        self.tables[i][j / self.size] as usize * self.size + j % self.size
    }

    /// The pages of sequence `i`.
    pub(super) fn table(&self, i: usize) -> &[u32] {
        &self.tables[i]
    }

    /// Pages of a sequence that a table has room for, so that it serves others: see
    /// [`Keys::bound`].
    pub(super) fn room(&self) -> usize {
        let most = self.tables.iter().map(|table| table.len()).max().unwrap_or(0);
        most.max(ALONE.div_ceil(self.size)).next_power_of_two()
    }
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
        let (count, tables, lengths) = (lengths.len(), tables.into(), lengths.into());
        Ok(Pages { tables: PerBatch::new(PageTables { tables, lengths, size }), count, size })
    }

    /// How many sequences.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The page tables, for an op.
    pub fn tables(&self, scope: OpScope) -> &PageTables {
        self.tables.get(scope)
    }

    /// The page tables, for anyone. A running capture becomes untracked.
    pub fn observe(&self) -> &PageTables {
        self.tables.observe()
    }

    /// Rows of a page.
    pub(super) fn size(&self) -> usize {
        self.size
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
            (Keys::Paged(own), Keys::Paged(others)) => {
                // Of the values nothing is read.
                let tables = |pages: &Pages| pages.tables(crate::replay::op_scope()).tables.as_ptr();
                tables(own) == tables(others)
            }
            _ => false,
        }
    }

    /// What a launch allows for, so that it serves others: the most keys of a sequence, in pages
    /// the next power of two. Few keys are one part at any rate, so that one launch serves all of
    /// them: a decoder with two kinds of keys has one for each pair of bounds.
    pub(super) fn bound(&self, scope: OpScope) -> usize {
        self.allowed(self.longest(scope))
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
            Keys::Paged(pages) => pages.count(),
        }
    }

    /// Keys of sequence `i`.
    pub(super) fn len(&self, scope: OpScope, i: usize) -> usize {
        match self {
            Keys::Packed(segments) => segments.lengths(scope).range(i).len(),
            Keys::Paged(pages) => pages.tables(scope).len(i),
        }
    }

    /// The most keys of a sequence.
    pub(super) fn longest(&self, scope: OpScope) -> usize {
        (0..self.count()).map(|i| self.len(scope, i)).max().unwrap_or(0)
    }

    /// Whether every key is one of `rows` rows.
    pub(super) fn within(&self, scope: OpScope, rows: usize) -> bool {
        match self {
            Keys::Packed(segments) => segments.tokens() == rows,
            Keys::Paged(p) => {
                let mut pages = p.tables(scope).tables.iter().flat_map(|table| table.iter());
                pages.all(|page| (*page as usize + 1) * p.size <= rows)
            }
        }
    }

    /// Runs of rows next to each other that hold keys `keys` of sequence `i`, in order.
    pub(super) fn runs(&self, scope: OpScope, i: usize, keys: Range<usize>) -> Vec<Range<usize>> {
        match self {
            Keys::Packed(segments) => {
                let start = segments.lengths(scope).range(i).start;
                std::iter::once(start + keys.start..start + keys.end).collect()
            }
            Keys::Paged(p) => {
                let mut runs: Vec<Range<usize>> = Vec::new();
                let mut key = keys.start;
                while key < keys.end {
                    let n = (p.size - key % p.size).min(keys.end - key);
                    let row = p.tables(scope).row(i, key);
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
    use crate::replay::op_scope;

    #[test]
    fn pages_next_to_each_other_are_one_run() {
        let pages = Pages::new(vec![([4, 5, 1].into(), 10), ([0].into(), 2)], 4).unwrap();
        let rows = pages.observe();
        assert_eq!((rows.row(0, 0), rows.row(0, 9), rows.row(1, 1)), (16, 5, 1));
        let (keys, scope) = (Keys::Paged(pages), op_scope());
        assert_eq!(keys.runs(scope, 0, 0..10), [16..24, 4..6]);
        assert_eq!(keys.runs(scope, 0, 3..7).first(), Some(&(19..23)));
        assert!(keys.within(scope, 24) && !keys.within(scope, 23));
        assert_eq!((keys.len(scope, 0), keys.longest(scope), keys.count()), (10, 10, 2));
        assert!(Pages::new(vec![([1].into(), 5)], 4).is_err() && Pages::new(vec![([1].into(), 0)], 4).is_err());
    }
}
