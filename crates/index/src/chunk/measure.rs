//! Estimated tokens of any part of a section, in constant time.
//!
//! Tokenizers cut texts at white space and punctuation first, so the tokens of a text are nearly
//! those of its words, and most words were counted before.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use text_splitter::TryChunkSizer;

use super::CountTokens;

/// The longest piece that is counted as one word. Texts without spaces are cut into such pieces.
const WORD_BYTES: usize = 48;

/// How many words are remembered.
const MAX_WORDS: usize = 1 << 16;

/// Parts of a token.
const UNITS: u32 = 64;

/// The token counts of words.
#[derive(Debug, Default)]
pub(super) struct WordCounts(HashMap<Box<str>, u32>);

impl WordCounts {
    /// The tokens of a text, counted word by word.
    pub(super) fn count(&mut self, text: &str, counter: &dyn CountTokens) -> usize {
        words(text).map(|word| self.word(&text[word], counter) as usize).sum()
    }

    fn word(&mut self, word: &str, counter: &dyn CountTokens) -> u32 {
        if let Some(&count) = self.0.get(word) {
            return count;
        }
        // At least one: what has no tokens must not make a chunk endless.
        let count = u32::try_from(counter.count(word)).unwrap_or(u32::MAX).clamp(1, WORD_BYTES as u32 * 4);
        if self.0.len() >= MAX_WORDS {
            self.0.clear();
        }
        self.0.insert(word.into(), count);
        count
    }
}

/// The words of a text: runs without white space, cut where they are too long.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text[at..];
        let start = at + (rest.len() - rest.trim_start().len());
        let most = text.floor_char_boundary(start + WORD_BYTES);
        let word = &text[start..most];
        let length = word.find(char::is_whitespace).unwrap_or(word.len());
        at = start + length;
        (length > 0).then_some(start..at)
    })
}

/// The estimated tokens of a section's parts.
pub(super) struct Measure<'t> {
    text: &'t str,
    /// The units before each byte, one more than the text has bytes.
    sums: Vec<u32>,
    /// From estimates to counts.
    factor: f64,
}

impl<'t> Measure<'t> {
    pub(super) fn new(text: &'t str, factor: f64, counter: &dyn CountTokens, counts: &mut WordCounts) -> Self {
        let mut sums = Vec::with_capacity(text.len() + 1);
        let mut sum = 0_u32;
        for word in words(text) {
            // White space before the word counts nothing.
            sums.resize(word.start + 1, sum);
            let units = counts.word(&text[word.clone()], counter) * UNITS;
            let length = word.len() as u32;
            sums.extend((1..=length).map(|byte| sum + units * byte / length));
            sum += units;
        }
        sums.resize(text.len() + 1, sum);
        Self { text, sums, factor }
    }

    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    /// The estimate without the factor.
    pub(super) fn raw(&self, range: Range<usize>) -> usize {
        self.units(range).div_ceil(UNITS) as usize
    }

    /// The estimate; at least 1, so that every part counts.
    pub(super) fn tokens(&self, range: Range<usize>) -> usize {
        ((f64::from(self.units(range)) * self.factor / f64::from(UNITS)).ceil() as usize).max(1)
    }

    /// The end of the longest part from `start` that is within `tokens`; at least one character.
    pub(super) fn reach(&self, start: usize, tokens: usize) -> usize {
        let (mut low, mut high) = (start, self.text.len());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.tokens(start..middle) <= tokens { low = middle } else { high = middle - 1 }
        }
        let end = self.text.floor_char_boundary(low);
        let first = self.text[start..].chars().next().map_or(0, char::len_utf8);
        end.max(start + first)
    }

    fn units(&self, range: Range<usize>) -> u32 {
        let sum = |at: usize| self.sums.get(at).or(self.sums.last()).copied().unwrap_or(0);
        sum(range.end).saturating_sub(sum(range.start))
    }
}

/// A measure that answers a bounded number of questions, so that a splitter that does not advance
/// ends with an error.
pub(super) struct Budgeted<'m, 't> {
    measure: &'m Measure<'t>,
    left: Cell<usize>,
}

impl<'m, 't> Budgeted<'m, 't> {
    pub(super) fn new(measure: &'m Measure<'t>) -> Self {
        Self { measure, left: Cell::new(measure.text.len() * 64 + 1000) }
    }
}

/// The splitter asked too often.
#[derive(Debug)]
pub(super) struct Exhausted;

impl TryChunkSizer for Budgeted<'_, '_> {
    type Error = Exhausted;

    /// The estimate for a part of the section. Its address tells where it is: `text-splitter`
    /// passes parts of the text that it splits.
    fn try_size(&self, chunk: &str) -> Result<usize, Exhausted> {
        self.left.set(self.left.get().checked_sub(1).ok_or(Exhausted)?);
        let text = self.measure.text;
        let start = chunk.as_ptr().addr().checked_sub(text.as_ptr().addr());
        Ok(match start {
            Some(start) if start + chunk.len() <= text.len() => self.measure.tokens(start..start + chunk.len()),
            _ => chunk.len().div_ceil(4).max(1),
        })
    }
}
