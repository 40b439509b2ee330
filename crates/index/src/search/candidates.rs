//! Candidates: the best of many scores, filters, full text and sparse postings.

use std::cell::{OnceCell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;

use super::segments::SegmentSet;
use crate::codes::Bitmap;
use crate::error::Result;
use crate::filter::Filter;
use crate::store::{Reader, match_expression};

/// The order of hits: greater scores first, equal ones by the chunk's id.
fn order(a: (i64, f32), b: (i64, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Sorts hits, the best first.
pub(super) fn sort(hits: &mut [(i64, f32)]) {
    hits.sort_unstable_by(|a, b| order(*a, *b));
}

#[derive(Clone, Copy, PartialEq)]
struct Entry(i64, f32);

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The better one is greater.
    fn cmp(&self, other: &Entry) -> Ordering {
        order((other.0, other.1), (self.0, self.1))
    }
}

/// The best of many scores.
pub(super) struct Best {
    count: usize,
    heap: BinaryHeap<Reverse<Entry>>,
}

impl Best {
    pub(super) fn new(count: usize) -> Best {
        Best { count, heap: BinaryHeap::new() }
    }

    /// Whether a score would be among the best so far.
    pub(super) fn takes(&self, chunk: i64, score: f32) -> bool {
        let is_better = |Reverse(worst): &Reverse<Entry>| Entry(chunk, score) > *worst;
        !score.is_nan() && (self.heap.len() < self.count || self.heap.peek().is_some_and(is_better))
    }

    pub(super) fn push(&mut self, chunk: i64, score: f32) {
        if self.takes(chunk, score) {
            self.heap.push(Reverse(Entry(chunk, score)));
            if self.heap.len() > self.count {
                self.heap.pop();
            }
        }
    }

    /// The best first.
    pub(super) fn into_sorted(self) -> Vec<(i64, f32)> {
        let mut hits: Vec<_> = self.heap.into_iter().map(|Reverse(Entry(chunk, score))| (chunk, score)).collect();
        sort(&mut hits);
        hits
    }
}

/// A filter on chunks. It is evaluated once on the codes; for chunks that no codes cover, on their
/// documents, which it remembers.
pub(super) struct Passes<'a> {
    filter: Option<&'a Filter>,
    reader: &'a Reader<'a>,
    set: &'a SegmentSet,
    rows: OnceCell<Vec<Bitmap>>,
    known: RefCell<HashMap<i64, bool>>,
}

impl<'a> Passes<'a> {
    pub(super) fn new(filter: Option<&'a Filter>, reader: &'a Reader<'a>, set: &'a SegmentSet) -> Passes<'a> {
        Passes { filter, reader, set, rows: OnceCell::new(), known: RefCell::default() }
    }

    /// For each segment the rows that may be found; `None`: all of them.
    pub(super) fn rows(&self) -> Option<&[Bitmap]> {
        let Some(filter) = self.filter else { return self.set.live.as_deref() };
        let evaluate = || {
            let mut rows: Vec<Bitmap> = self.set.segments.iter().map(|segment| segment.rows_matching(filter)).collect();
            if let Some(live) = &self.set.live {
                rows.iter_mut().zip(live).for_each(|(rows, live)| rows.intersect(live));
            }
            rows
        };
        Some(self.rows.get_or_init(evaluate))
    }

    /// Whether all chunks pass.
    pub(super) fn is_all(&self) -> bool {
        self.filter.is_none()
    }

    /// Whether the document of a chunk passes.
    pub(super) fn chunk(&self, chunk: i64) -> Result<bool> {
        let Some(filter) = self.filter else { return Ok(true) };
        if let Some((segment, row)) = self.set.row(chunk) {
            return Ok(self.rows().is_none_or(|rows| rows[segment].contains(row)));
        }
        let Some(document) = self.reader.document_of(chunk)? else { return Ok(false) };
        if let Some(known) = self.known.borrow().get(&document) {
            return Ok(*known);
        }
        let passes = filter.matches(&self.reader.filter_metadata(document)?);
        self.known.borrow_mut().insert(document, passes);
        Ok(passes)
    }
}

/// The best chunks by BM25.
pub(super) fn bm25(reader: &Reader<'_>, text: &str, passes: &Passes<'_>, count: usize) -> Result<Vec<(i64, f32)>> {
    let Some(expression) = match_expression(text) else { return Ok(Vec::new()) };
    let mut hits = Vec::new();
    // With a limit, SQLite need not sort all matches.
    let most = passes.is_all().then_some(count);
    reader.each_match(&expression, most, |chunk, score| {
        if passes.chunk(chunk)? {
            hits.push((chunk, score));
        }
        Ok(if hits.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(hits)
}

/// The best chunks by the product of sparse embeddings.
pub(super) fn sparse(
    reader: &Reader<'_>,
    query: &[(u32, f32)],
    passes: &Passes<'_>,
    count: usize,
) -> Result<Vec<(i64, f32)>> {
    let mut scores: HashMap<i64, f32> = HashMap::new();
    for (term, weight) in query {
        reader.each_posting(*term, |chunk, other| *scores.entry(chunk).or_default() += weight * other)?;
    }
    let mut best = Best::new(count);
    for (chunk, score) in scores {
        if score > 0.0 && best.takes(chunk, score) && passes.chunk(chunk)? {
            best.push(chunk, score);
        }
    }
    Ok(best.into_sorted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_kept_and_ties_go_by_id() {
        let mut best = Best::new(3);
        for (chunk, score) in [(5, 0.5), (4, 0.5), (1, 0.1), (9, 0.9), (3, 0.5), (2, f32::NAN), (8, -1.0)] {
            best.push(chunk, score);
        }
        assert_eq!(best.into_sorted(), [(9, 0.9), (3, 0.5), (4, 0.5)]);
        let mut none = Best::new(0);
        none.push(1, 1.0);
        assert!(none.into_sorted().is_empty());
    }
}
