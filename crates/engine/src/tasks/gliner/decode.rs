//! From logits to entities: candidates above the threshold, and a greedy search that drops those that
//! overlap better ones, as in the `gliner` package.

use super::GlinerOptions;
use sconce_models::spans;

/// A span of words with a label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) first: usize,
    /// Its last word, inclusive.
    pub(super) last: usize,
    pub(super) label: usize,
    pub(super) score: f32,
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Most candidates of a text, which bounds memory where the threshold is low.
const MAX_CANDIDATES: usize = 1 << 20;

/// Candidates from a logit of each span and label; `None` if there are too many.
pub(super) fn of_spans(
    logits: &[f32],
    (words, labels): (usize, usize),
    max_width: usize,
    threshold: f32,
) -> Option<Vec<Candidate>> {
    let rows = spans(words, max_width).zip(logits.chunks_exact(labels.max(1)));
    let of = |((first, last), row): ((usize, usize), &[f32])| {
        let scores: Vec<f32> = row.iter().map(|logit| sigmoid(*logit)).collect();
        scores.into_iter().enumerate().map(move |(label, score)| Candidate { first, last, label, score })
    };
    limited(rows.flat_map(of).filter(|candidate| candidate.score > threshold))
}

/// Candidates from three logits of each word and label: an entity starts there, ends there, contains
/// the word. The score of a span is the least of its words' and of its ends'. `None` if there are
/// too many.
pub(super) fn of_words(logits: &[f32], (words, labels): (usize, usize), threshold: f32) -> Option<Vec<Candidate>> {
    let scores: Vec<f32> = logits.iter().map(|logit| sigmoid(*logit)).collect();
    let score = |word: usize, label: usize, which: usize| {
        scores.get((word * labels + label) * 3 + which).copied().unwrap_or(0.0)
    };
    let starts = (0..words).flat_map(|first| (0..labels).map(move |label| (first, label)));
    let starts = starts.filter(|(first, label)| score(*first, *label, 0) > threshold);
    let from = |(first, label): (usize, usize)| {
        let insides = (first..words).map(move |word| (word, score(word, label, 2)));
        let insides = insides.take_while(move |(_, inside)| *inside >= threshold);
        let spans = insides.scan(score(first, label, 0), move |least, (last, inside)| {
            *least = least.min(inside);
            let end = score(last, label, 1);
            let candidate = Candidate { first, last, label, score: least.min(end) };
            Some((end > threshold).then_some(candidate))
        });
        spans.flatten()
    };
    limited(starts.flat_map(from))
}

/// All candidates, unless there are too many.
fn limited(candidates: impl Iterator<Item = Candidate>) -> Option<Vec<Candidate>> {
    let found: Vec<_> = candidates.take(MAX_CANDIDATES + 1).collect();
    (found.len() <= MAX_CANDIDATES).then_some(found)
}

/// The candidates that do not overlap a better one, by their first word.
pub(super) fn greedy(mut candidates: Vec<Candidate>, words: usize, options: &GlinerOptions) -> Vec<Candidate> {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut selected =
        Selected { spans: Default::default(), min_first: vec![usize::MAX; words], max_last: vec![0; words] };
    candidates.retain(|candidate| {
        let span = (candidate.first, candidate.last);
        let overlaps = match selected.spans.contains(&span) {
            // No span that overlaps it was selected with it or after it.
            true => !options.multi_label,
            false if options.nested => selected.crosses(span),
            false => selected.overlaps(span),
        };
        if !overlaps {
            selected.add(span);
        }
        !overlaps
    });
    candidates.sort_by_key(|candidate| candidate.first);
    candidates
}

/// The selected spans, so that a check takes time in the length of a span, not in their number.
struct Selected {
    spans: std::collections::BTreeSet<(usize, usize)>,
    /// For each word the first word of the longest span that ends there.
    min_first: Vec<usize>,
    /// For each word one more than the last word of the longest span that starts there.
    max_last: Vec<usize>,
}

impl Selected {
    fn add(&mut self, (first, last): (usize, usize)) {
        self.spans.insert((first, last));
        self.min_first[last] = self.min_first[last].min(first);
        self.max_last[first] = self.max_last[first].max(last + 1);
    }

    /// Whether a selected span overlaps this one and neither contains the other.
    fn crosses(&self, (first, last): (usize, usize)) -> bool {
        (first..last).any(|word| self.min_first[word] < first)
            || (first + 1..=last).any(|word| self.max_last[word] > last + 1)
    }

    /// Whether a selected span, none of which overlap, shares a word with this one.
    fn overlaps(&self, (first, last): (usize, usize)) -> bool {
        // The last span that starts at or before `last` is the only one that may reach `first`
        // without starting inside.
        self.spans.range(..=(last, usize::MAX)).next_back().is_some_and(|(_, end)| *end >= first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_testkit::Rng;

    /// The package's own search: every pair is compared.
    fn by_pairs(mut candidates: Vec<Candidate>, options: &GlinerOptions) -> Vec<Candidate> {
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut selected: Vec<Candidate> = Vec::new();
        for c in candidates {
            let conflicts = |s: &Candidate| {
                let is_apart = c.first > s.last || s.first > c.last;
                let is_nested = c.first <= s.first && c.last >= s.last || s.first <= c.first && s.last >= c.last;
                match (c.first, c.last) == (s.first, s.last) {
                    true => !options.multi_label,
                    false if options.nested => !(is_apart || is_nested),
                    false => !is_apart,
                }
            };
            if !selected.iter().any(conflicts) {
                selected.push(c);
            }
        }
        selected.sort_by_key(|c| c.first);
        selected
    }

    /// As the package finds them: every start with every end.
    #[test]
    fn spans_of_words_have_a_start_an_end_and_no_gap() {
        let logit = |score: f32| (score / (1.0 - score)).ln();
        // Start, end, inside of two labels for three words.
        let scores = [
            [[0.9, 0.1, 0.8], [0.1, 0.9, 0.9]],
            [[0.6, 0.7, 0.6], [0.9, 0.9, 0.2]],
            [[0.1, 0.9, 0.7], [0.7, 0.8, 0.9]],
        ];
        let logits: Vec<f32> = scores.iter().flatten().flatten().map(|score| logit(*score)).collect();
        let found: Vec<_> = of_words(&logits, (3, 2), 0.5).unwrap();
        let rounded = found.iter().map(|c| (c.first, c.last, c.label, (c.score * 10.0).round() as u32));
        // The second word is not inside an entity of the second label.
        assert_eq!(rounded.collect::<Vec<_>>(), [(0, 1, 0, 6), (0, 2, 0, 6), (1, 1, 0, 6), (1, 2, 0, 6), (2, 2, 1, 7)]);
    }

    #[test]
    fn too_many_candidates_are_refused() {
        let words = 1500;
        assert!(of_words(&vec![9.0; 3 * words], (words, 1), 0.0).is_none());
        assert_eq!(of_words(&vec![9.0; 3 * 100], (100, 1), 0.0).unwrap().len(), 5050);
        let labels = 60;
        assert!(of_spans(&vec![9.0; 12 * words * labels], (words, labels), 12, 0.0).is_none());
        assert_eq!(of_spans(&vec![9.0; 12 * words], (words, 1), 12, 0.0).unwrap().len(), 12 * words - 66);
    }

    #[test]
    fn greedy_search_equals_the_comparison_of_all_pairs() {
        let mut rng = Rng::new(7);
        for round in 0..400 {
            let words = 1 + round % 12;
            let candidates: Vec<_> = (0..rng.below(40))
                .map(|_| {
                    let first = rng.below(words);
                    let last = first + rng.below(words - first);
                    let score = rng.below(20) as f32 / 20.0;
                    Candidate { first, last, label: rng.below(3), score }
                })
                .collect();
            for (nested, multi_label) in [(false, false), (false, true), (true, false), (true, true)] {
                let options = GlinerOptions { nested, multi_label, ..GlinerOptions::default() };
                let found = greedy(candidates.clone(), words, &options);
                assert_eq!(found, by_pairs(candidates.clone(), &options), "{candidates:?} {options:?}");
            }
        }
    }
}
