//! Chunks: parts of a document's text that fit the model, cut where the text's structure allows.
//!
//! The text is first cut into sections of bounded length at natural borders, so that all work is
//! linear in the text; `text-splitter` then cuts each section. It asks for the length of many
//! candidates, so lengths are estimated from the tokens of single words (`measure.rs`), and only the
//! finished chunks are counted exactly.

mod border;
mod join;
mod locate;
mod measure;
mod overlap;
mod split;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::document::{Chunk, Document, Kind};
use crate::error::{Error, Result};
use border::{middle, sections, trim};
use join::join;
use locate::Locator;
use measure::{Measure, WordCounts};

/// The shortest section, in bytes. Longer chunks need longer ones.
const SECTION_BYTES: usize = 16 << 10;

/// The longest section, in bytes.
const MAX_SECTION_BYTES: usize = 256 << 10;

/// How much of a text is counted to find out how estimates and counts differ, in bytes.
const SAMPLE_BYTES: usize = 2 << 10;

/// Counts the tokens of a text as the model's tokenizer does, special tokens not counted.
pub trait CountTokens: Sync {
    /// The number of tokens.
    fn count(&self, text: &str) -> usize;
}

/// How long chunks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkOptions {
    /// The most tokens of a chunk, special tokens not counted.
    pub tokens: usize,
    /// How many tokens of the chunk before a chunk repeats, at most.
    pub overlap: usize,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        Self { tokens: 256, overlap: 0 }
    }
}

impl ChunkOptions {
    /// The same options for a model that reads `tokens` at most, special tokens not counted.
    pub fn capped(self, tokens: usize) -> Self {
        Self { tokens: self.tokens.min(tokens), ..self }
    }
}

/// Cuts documents into chunks. Threads share it. The same document always gives the same chunks.
pub struct Chunker<'a> {
    options: ChunkOptions,
    counter: &'a dyn CountTokens,
    /// Counts of words, one set for each thread that is at work.
    words: Mutex<Vec<WordCounts>>,
}

impl<'a> Chunker<'a> {
    /// A chunker for the model that `counter` counts for.
    pub fn new(options: ChunkOptions, counter: &'a dyn CountTokens) -> Result<Self> {
        let ChunkOptions { tokens, overlap } = options;
        if tokens == 0 {
            return Err(Error::Input("a chunk must have at least one token".to_string()));
        }
        if overlap > tokens / 2 {
            let why = format!("an overlap of {overlap} tokens is more than half of a chunk of {tokens} tokens");
            return Err(Error::Input(why));
        }
        Ok(Self { options, counter, words: Mutex::default() })
    }

    /// The chunks of a document, in the order of its text. Together they have every byte of it
    /// that is not white space.
    pub fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let Document { text, kind, layout, .. } = document;
        let whole = trim(text, 0..text.len());
        if whole.is_empty() {
            return Vec::new();
        }
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let mut pass = Pass {
            text,
            kind: *kind,
            capacity: self.options.tokens - self.options.overlap,
            counter: self.counter,
            words: &mut words,
            scale: Scale::default(),
            pieces: Vec::new(),
        };
        pass.cut(whole);
        let pieces = join(pass.pieces, pass.capacity, text, &layout.headings, self.counter);
        let pieces = overlap::extend(pieces, text, &self.options, self.counter, &mut words);
        self.words.lock().unwrap_or_else(PoisonError::into_inner).push(words);
        let mut locator = Locator::new(text, layout);
        let chunk = |piece: Piece| {
            let (place, heading) = locator.locate(piece.range.start);
            Chunk { range: piece.range, heading, place, tokens: u32::try_from(piece.tokens).unwrap_or(u32::MAX) }
        };
        pieces.into_iter().map(chunk).collect()
    }
}

/// A chunk before its place is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    range: Range<usize>,
    /// The exact count.
    tokens: usize,
    /// The estimate. A tokenizer may have one token for a very long unknown word; estimates bound
    /// the bytes of chunks then.
    estimate: usize,
}

/// The cutting of one document.
struct Pass<'a> {
    text: &'a str,
    kind: Kind,
    capacity: usize,
    counter: &'a dyn CountTokens,
    words: &'a mut WordCounts,
    scale: Scale,
    pieces: Vec<Piece>,
}

/// Exact counts and estimates so far. Of this document only: chunks must not depend on others.
#[derive(Default)]
struct Scale {
    exact: usize,
    estimate: usize,
}

impl Scale {
    /// The factor from estimates to counts. Where they differ, a little more: an estimate that is
    /// too low costs a cut in a worse place.
    fn factor(&self) -> f64 {
        if self.estimate == 0 || self.exact == self.estimate {
            return 1.0;
        }
        (self.exact as f64 / self.estimate as f64 * 1.02).clamp(0.5, 2.0)
    }

    fn add(&mut self, exact: usize, estimate: usize) {
        self.exact += exact;
        self.estimate += estimate;
    }
}

impl Pass<'_> {
    fn cut(&mut self, whole: Range<usize>) {
        // Most rows of tables and many files are one chunk.
        if whole.len() <= self.capacity.saturating_mul(8).min(SECTION_BYTES) {
            let tokens = self.counter.count(&self.text[whole.clone()]);
            if tokens <= self.capacity {
                self.pieces.push(Piece { range: whole, tokens, estimate: tokens });
                return;
            }
        }
        let sample = whole.start..self.text.floor_char_boundary((whole.start + SAMPLE_BYTES).min(whole.end));
        let sample = &self.text[sample];
        let estimate = Measure::new(sample, 1.0, self.counter, self.words).raw(0..sample.len());
        self.scale.add(self.counter.count(sample), estimate);
        let bytes = self.capacity.saturating_mul(64).clamp(SECTION_BYTES, MAX_SECTION_BYTES);
        for section in sections(self.text, whole, bytes, self.kind) {
            let section = trim(self.text, section);
            if !section.is_empty() {
                self.cut_section(section);
            }
        }
    }

    fn cut_section(&mut self, section: Range<usize>) {
        let text = self.text;
        let measure = Measure::new(&text[section.clone()], self.scale.factor(), self.counter, self.words);
        let found = split::split(&measure, self.kind, self.capacity);
        for range in split::repair(measure.text(), found) {
            let estimate = measure.raw(range.clone());
            self.push(section.start + range.start..section.start + range.end, estimate);
        }
    }

    /// Counts a finished chunk, and cuts it in two if it is too long after all.
    fn push(&mut self, range: Range<usize>, estimate: usize) {
        let text = &self.text[range.clone()];
        let tokens = self.counter.count(text);
        self.scale.add(tokens, estimate);
        // Only a text that must be cut is searched for a border. One character may have more
        // tokens than a chunk should; it cannot be cut.
        let at = if tokens <= self.capacity { text.len() } else { middle(text, self.kind) };
        if at >= text.len() {
            self.pieces.push(Piece { range, tokens, estimate });
            return;
        }
        for half in [range.start..range.start + at, range.start + at..range.end] {
            let estimate = (estimate as f64 * half.len() as f64 / range.len() as f64).ceil() as usize;
            let half = trim(self.text, half);
            if !half.is_empty() {
                self.push(half, estimate);
            }
        }
    }
}
