//! Which rows of k and v are the keys of each sequence: contiguous rows, or pages of a paged KV
//! cache.

use crate::replay::{OpScope, PerBatch};
use crate::{Error, Result, Segments};
use std::ops::Range;
use std::sync::Arc;

/// Sequences of up to this many keys are not split between thread blocks. Same value as in
/// `attention/task.cuh`.
pub(crate) const MAX_UNSPLIT_KEYS: usize = 128;

/// The rows of k and v that the queries of the same sequence attend to.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Sequences packed one after another.
    Packed(Segments),
    /// Rows of a paged KV cache.
    Paged(Pages),
}

/// Sequences in a paged KV cache (PagedAttention: Kwon et al. 2023, arXiv:2309.06180), each with a
/// page table. Access to the tables follows the rules of [`Segments`].
#[derive(Clone, Debug)]
pub struct Pages {
    tables: PerBatch<PageTables>,
    count: usize,
    /// Rows of a page.
    size: usize,
}

/// The page table of each sequence.
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

    /// The row of the KV cache that holds token `j` of sequence `i`.
    pub fn row(&self, i: usize, j: usize) -> usize {
        self.tables[i][j / self.size] as usize * self.size + j % self.size
    }

    /// The page table of sequence `i`.
    pub(super) fn table(&self, i: usize) -> &[u32] {
        &self.tables[i]
    }

    /// Pages per sequence that a table has space for, so that a launch fits other batches too: see
    /// [`Keys::bound`].
    pub(super) fn room(&self) -> usize {
        let most = self.tables.iter().map(|table| table.len()).max().unwrap_or(0);
        most.max(MAX_UNSPLIT_KEYS.div_ceil(self.size)).next_power_of_two()
    }
}

impl Pages {
    /// From each sequence's table and its length in tokens; the last page need not be full.
    pub fn new(sequences: Vec<(Arc<[u32]>, usize)>, size: usize) -> Result<Pages> {
        for (table, length) in &sequences {
            if *length == 0 || table.len().saturating_mul(size) < *length {
                let what =
                    format!("cannot place {length} tokens in {} pages of {size}: none, or too many", table.len());
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

    /// The page tables, for other callers. A running capture becomes untracked.
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
    /// Whether the keys are these segments, by identity.
    pub(crate) fn is(&self, segments: &Segments) -> bool {
        matches!(self, Keys::Packed(packed) if packed.is(segments))
    }

    /// Whether both are the same object, not only equal.
    #[cfg(cuda)]
    pub(crate) fn are(&self, others: &Keys) -> bool {
        match (self, others) {
            (Keys::Packed(ours), Keys::Packed(others)) => ours.is(others),
            (Keys::Paged(ours), Keys::Paged(others)) => {
                // Compares pointers only, so the capture stays tracked.
                let tables = |pages: &Pages| pages.tables(crate::replay::op_scope()).tables.as_ptr();
                tables(ours) == tables(others)
            }
            _ => false,
        }
    }

    /// The key count that a launch is sized for, so that it fits other batches too: that of the
    /// longest sequence, for pages the next power of two. Up to `MAX_UNSPLIT_KEYS` keys the bound
    /// is the same for all, because a decoder with two kinds of keys needs one graph for each pair
    /// of bounds.
    pub(super) fn bound(&self, scope: OpScope) -> usize {
        self.allowed(self.longest(scope))
    }

    /// The bound for some of the sequences, the longest of which has `longest` keys.
    pub(super) fn allowed(&self, longest: usize) -> usize {
        match self {
            Keys::Packed(segments) if segments.fillers() > 0 => segments.tokens(),
            Keys::Packed(_) => longest,
            Keys::Paged(_) => longest.max(MAX_UNSPLIT_KEYS).next_power_of_two(),
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

    /// Whether all keys are within the first `rows` rows.
    pub(super) fn within(&self, scope: OpScope, rows: usize) -> bool {
        match self {
            Keys::Packed(segments) => segments.tokens() == rows,
            Keys::Paged(p) => {
                let mut pages = p.tables(scope).tables.iter().flat_map(|table| table.iter());
                pages.all(|page| (*page as usize + 1) * p.size <= rows)
            }
        }
    }

    /// Runs of contiguous rows that hold the keys `keys` of sequence `i`, in order.
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
    fn adjacent_pages_form_one_run() {
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
