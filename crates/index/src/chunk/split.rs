//! Cutting one section: by `text-splitter`, or evenly where it has nothing to go by.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use text_splitter::{ChunkConfig, CodeSplitter, CodeSplitterError, MarkdownSplitter, TextSplitter, TryChunkSizer};

use super::border::{best, trim};
use super::measure::{Budgeted, Exhausted, Measure};
use crate::document::{Kind, Language};

/// A run without white space that is longer than this is cut evenly: `text-splitter` would look at
/// the whole rest of it for every chunk.
const MAX_RUN: usize = 2 << 10;

/// Parts of a section that should fit `capacity`, by its estimates.
pub(super) fn split(measure: &Measure<'_>, kind: Kind, capacity: usize) -> Vec<Range<usize>> {
    let text = measure.text();
    if measure.tokens(0..text.len()) <= capacity {
        return Vec::from([Range { start: 0, end: text.len() }]);
    }
    if has_long_run(text) {
        return evenly(measure, kind, capacity);
    }
    // Parsers of Markdown and code are others' work: a panic costs the structure of one section.
    let parts = catch_unwind(AssertUnwindSafe(|| with_structure(measure, kind, capacity)));
    parts.ok().flatten().unwrap_or_else(|| evenly(measure, kind, capacity))
}

/// The parts that `text-splitter` finds; `None` if it does not come to an end.
fn with_structure(measure: &Measure<'_>, kind: Kind, capacity: usize) -> Option<Vec<Range<usize>>> {
    let text = measure.text();
    let config = ChunkConfig::new(capacity).with_sizer(Budgeted::new(measure));
    let range = |found: Result<(usize, &str), Exhausted>| found.ok().map(|(start, part)| start..start + part.len());
    match kind {
        Kind::Markdown => MarkdownSplitter::new(config).try_chunk_indices(text).map(range).collect(),
        Kind::Code(language) => code_splitter(language, config).ok()?.try_chunk_indices(text).map(range).collect(),
        Kind::Text | Kind::Html | Kind::Pdf | Kind::Table => {
            TextSplitter::new(config).try_chunk_indices(text).map(range).collect()
        }
    }
}

/// Parts as long as they may be, cut at the best border in their last third.
fn evenly(measure: &Measure<'_>, kind: Kind, capacity: usize) -> Vec<Range<usize>> {
    let text = measure.text();
    let (mut parts, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let reach = measure.reach(start, capacity);
        let end = match reach {
            reach if reach >= text.len() => text.len(),
            reach => best(text, start, start + (reach - start) * 2 / 3..reach, kind),
        };
        parts.push(trim(text, start..end));
        start = end;
    }
    parts
}

/// What `text-splitter` found, made sure of: parts in order, in the text, on character boundaries,
/// trimmed, and no text between them is lost.
pub(super) fn repair(text: &str, parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let (mut sound, mut at) = (Vec::with_capacity(parts.len()), 0);
    let mut push = |range: Range<usize>| {
        let range = trim_end(text, range);
        if !range.is_empty() {
            sound.push(range);
        }
    };
    for part in parts {
        let (start, end) = (part.start.max(at), part.end.min(text.len()));
        if start >= end || !text.is_char_boundary(start) || !text.is_char_boundary(end) {
            continue;
        }
        push(trim(text, at..start));
        push(start..end);
        at = end;
    }
    push(trim(text, at..text.len()));
    sound
}

/// White space at the start stays where it is the indentation of code.
fn trim_end(text: &str, range: Range<usize>) -> Range<usize> {
    range.start..range.start + text[range].trim_end().len()
}

fn has_long_run(text: &str) -> bool {
    let mut run = 0;
    text.chars().any(|c| {
        run = if c.is_whitespace() { 0 } else { run + c.len_utf8() };
        run > MAX_RUN
    })
}

fn code_splitter<S: TryChunkSizer>(
    language: Language,
    config: ChunkConfig<S>,
) -> Result<CodeSplitter<S>, CodeSplitterError> {
    match language {
        Language::C => CodeSplitter::new(tree_sitter_c::LANGUAGE, config),
        Language::Go => CodeSplitter::new(tree_sitter_go::LANGUAGE, config),
        Language::Java => CodeSplitter::new(tree_sitter_java::LANGUAGE, config),
        Language::JavaScript => CodeSplitter::new(tree_sitter_javascript::LANGUAGE, config),
        Language::Python => CodeSplitter::new(tree_sitter_python::LANGUAGE, config),
        Language::Ruby => CodeSplitter::new(tree_sitter_ruby::LANGUAGE, config),
        Language::Rust => CodeSplitter::new(tree_sitter_rust::LANGUAGE, config),
        Language::TypeScript => CodeSplitter::new(tree_sitter_typescript::LANGUAGE_TYPESCRIPT, config),
    }
}
