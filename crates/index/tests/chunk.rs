//! Properties of chunks: they cover the text, lie in it, fit the model, and cost little.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use sconce_index::chunk::{ChunkOptions, Chunker, CountTokens};
use sconce_index::{Chunk, Document, Heading, Kind, Language, Layout, Metadata, Unit};
use sconce_testkit::{Rng, check};

/// Tokenizers as they differ in what matters to the chunker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counter {
    /// A word or a mark of punctuation; a long word is one unknown token (WordPiece).
    WordPiece,
    /// A byte.
    Bytes,
    /// Four bytes, white space too (byte-level BPE).
    Quarter,
    /// Many tokens for a character.
    Many,
    /// None at all.
    Zero,
}

impl CountTokens for Counter {
    fn count(&self, text: &str) -> usize {
        match self {
            Self::WordPiece => text.split_whitespace().map(word_pieces).sum(),
            Self::Bytes => text.len(),
            Self::Quarter => text.len().div_ceil(4),
            Self::Many => text.chars().count() * 40,
            Self::Zero => 0,
        }
    }
}

fn word_pieces(word: &str) -> usize {
    let parts = word.split(|c: char| c.is_ascii_punctuation());
    let words: usize = parts.map(|part| if part.len() > 100 { 1 } else { part.chars().count().div_ceil(5) }).sum();
    words + word.chars().filter(char::is_ascii_punctuation).count()
}

fn document(text: &str, kind: Kind) -> Document {
    let layout = Layout { unit: Unit::Line, ..Layout::default() };
    Document { title: None, kind, text: text.to_string(), metadata: Metadata::new(), row: None, layout }
}

fn chunks(text: &str, kind: Kind, tokens: usize, counter: &dyn CountTokens) -> Vec<Chunk> {
    Chunker::new(ChunkOptions { tokens, overlap: 0 }, counter).unwrap().chunk(&document(text, kind))
}

/// What every list of chunks must satisfy.
fn assert_sound(text: &str, chunks: &[Chunk], options: ChunkOptions, counter: &dyn CountTokens) {
    let (mut covered, mut last_start) = (0, None);
    for chunk in chunks {
        let Range { start, end } = chunk.range;
        assert!(start < end && end <= text.len(), "{:?} of {}", chunk.range, text.len());
        let part = text.get(start..end).expect("on character boundaries");
        assert!(!part.trim().is_empty());
        assert!(last_start.is_none_or(|last| last < start), "not in order");
        assert!(end > covered, "{:?} has nothing new", chunk.range);
        assert!(options.overlap > 0 || start >= covered, "overlaps without being asked to");
        assert!(text[covered..start.max(covered)].trim().is_empty(), "text is lost before {start}");
        let tokens = counter.count(part);
        assert_eq!(chunk.tokens as usize, tokens);
        assert!(tokens <= options.tokens || part.chars().count() == 1, "{tokens} tokens of {}", options.tokens);
        (covered, last_start) = (end, Some(start));
    }
    assert!(text[covered..].trim().is_empty(), "text is lost at the end");
}

const KINDS: &[Kind] = &[
    Kind::Text,
    Kind::Markdown,
    Kind::Html,
    Kind::Pdf,
    Kind::Table,
    Kind::Code(Language::Rust),
    Kind::Code(Language::Python),
    Kind::Code(Language::JavaScript),
];

const PARTS: &[&str] = &[
    "word ",
    "a",
    "The quick brown fox. ",
    "\n",
    "\n\n",
    "\r\n",
    "    ",
    "\t",
    "# Heading\n",
    "## Two\n\n",
    "- item\n",
    "```\n",
    "`code` ",
    "| a | b |\n|---|---|\n",
    "[link](url) ",
    "> quote\n",
    "1. one\n",
    "---\n",
    "é",
    "日本語の文章。",
    "漢字",
    "🎉",
    "👩‍👩‍👧",
    "e\u{301}",
    "\u{200b}",
    "\u{3000}",
    "\u{a0}",
    "\u{85}",
    "fn f(x: u8) -> u8 { x }\n",
    "def f(x):\n    return x\n",
    "{",
    "}",
    "(((",
    "\"",
    "/* ",
    "*/",
    "// c\n",
    "supercalifragilisticexpialidocious",
    "\0",
    "!?.,;",
];

#[test]
fn chunks_cover_the_text_and_lie_in_it() {
    let parts = prop::collection::vec((select(PARTS), 1..30_usize), 0..40);
    let counters = select(vec![Counter::WordPiece, Counter::Bytes, Counter::Quarter, Counter::Many, Counter::Zero]);
    let sizes = select(vec![1_usize, 2, 7, 16, 64, 256]);
    let inputs = (parts, select(KINDS), counters, sizes, 0..4_usize);
    check(1500, &inputs, |(parts, kind, counter, tokens, overlap)| {
        let text: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
        let options = ChunkOptions { tokens, overlap: tokens / 2 * overlap / 3 };
        let chunker = Chunker::new(options, &counter).unwrap();
        let first = chunker.chunk(&document(&text, kind));
        assert_sound(&text, &first, options, &counter);
        // What the chunker remembers of other texts must not change the result.
        assert_eq!(chunker.chunk(&document(&text, kind)), first);
    });
}

/// Texts beyond several sections, of a few kinds of words.
#[test]
fn long_texts_are_cut_soundly() {
    let inputs = (prop::collection::vec(select(PARTS), 1..12), select(KINDS), any::<u64>());
    check(40, &inputs, |(parts, kind, seed)| {
        let mut rng = Rng::new(seed);
        let mut text = String::new();
        while text.len() < 60_000 {
            text.push_str(parts[rng.below(parts.len())]);
        }
        for counter in [Counter::WordPiece, Counter::Quarter] {
            let options = ChunkOptions { tokens: 100, overlap: 0 };
            let chunks = Chunker::new(options, &counter).unwrap().chunk(&document(&text, kind));
            assert_sound(&text, &chunks, options, &counter);
        }
    });
}

/// Counts the bytes that are tokenized.
struct Spy(AtomicUsize);

impl CountTokens for Spy {
    fn count(&self, text: &str) -> usize {
        self.0.fetch_add(text.len(), Ordering::Relaxed);
        Counter::WordPiece.count(text)
    }
}

fn prose(bytes: usize) -> String {
    let (mut rng, mut text) = (Rng::new(3), String::new());
    while text.len() < bytes {
        for _ in 0..5 + rng.below(20) {
            let letters = 1 + rng.below(9);
            text.extend((0..letters).map(|_| char::from(b'a' + rng.below(26) as u8)));
            text.push(' ');
        }
        text.pop();
        text.push_str(if rng.below(5) == 0 { ".\n\n" } else { ". " });
    }
    text
}

#[test]
fn a_text_is_tokenized_about_twice() {
    let without_spaces: String = prose(1 << 20).split_whitespace().collect();
    let texts = [
        ("prose", prose(1 << 20)),
        ("no spaces", without_spaces),
        ("one letter", "a".repeat(1 << 20)),
        ("Chinese", "漢字のテキスト。".repeat(40_000)),
        ("short lines", "ab\n".repeat(300_000)),
        ("no content", " \n".repeat(500_000)),
        ("code", "fn main() { let x = 1; }\n".repeat(40_000)),
        ("brackets", "(".repeat(300_000)),
    ];
    for (name, text) in texts {
        for kind in [Kind::Text, Kind::Markdown, Kind::Code(Language::Rust)] {
            let spy = Spy(AtomicUsize::new(0));
            let began = Instant::now();
            let found = chunks(&text, kind, 256, &spy);
            let (elapsed, counted) = (began.elapsed(), spy.0.into_inner());
            assert_sound(&text, &found, ChunkOptions::default(), &Counter::WordPiece);
            assert!(counted <= text.len() * 4 + 10_000, "{name}, {kind:?}: {counted} bytes of {}", text.len());
            // Far more than it takes beside other builds; a quadratic chunker takes many minutes.
            assert!(elapsed < Duration::from_secs(90), "{name}, {kind:?}: {elapsed:?}");
        }
    }
}

#[test]
fn chunks_are_nearly_full() {
    let text = prose(200_000);
    for counter in [Counter::WordPiece, Counter::Quarter] {
        let found = chunks(&text, Kind::Text, 256, &counter);
        let mean = found.iter().map(|chunk| chunk.tokens as usize).sum::<usize>() / found.len();
        assert!(mean > 150, "{counter:?}: {mean} tokens in the mean");
    }
}

#[test]
fn short_texts_are_one_chunk() {
    let found = chunks("  # A\n\ntext\n\n## B\n\nmore\n", Kind::Markdown, 256, &Counter::WordPiece);
    assert!(found.len() == 1 && found[0].range == (2..23), "{found:?}");
    assert!(chunks(" \n\t ", Kind::Text, 256, &Counter::WordPiece).is_empty());
    assert!(chunks("", Kind::Text, 256, &Counter::WordPiece).is_empty());
}

#[test]
fn lines_and_headings_of_chunks() {
    let body = "some words of a paragraph that is long enough\n".repeat(4);
    let text = format!("# A\n\n{body}\n## B\n\n{body}\n# C\n\n{body}");
    let mut document = document(&text, Kind::Markdown);
    let heading =
        |title: &str, level, text_: &str| Heading { offset: text.find(title).unwrap(), level, text: text_.into() };
    document.layout.headings = vec![heading("# A", 1, "A"), heading("## B", 2, "B"), heading("# C", 1, "C")];
    let options = ChunkOptions { tokens: 60, overlap: 0 };
    let found = Chunker::new(options, &Counter::WordPiece).unwrap().chunk(&document);
    assert_sound(&text, &found, options, &Counter::WordPiece);
    for chunk in &found {
        let before = &text[..chunk.range.start];
        assert_eq!(chunk.place, Some(1 + before.matches('\n').count() as u32));
        let expected = match chunk.range.start {
            start if start >= text.find("# C").unwrap() => "C",
            start if start >= text.find("## B").unwrap() => "A > B",
            _ => "A",
        };
        assert_eq!(chunk.heading.as_deref(), Some(expected));
    }
    assert!(found.iter().any(|chunk| text[chunk.range.clone()].starts_with("## B")), "no chunk begins at a heading");
}

#[test]
fn pages_of_chunks() {
    let text = "first page text. second page text. third";
    let mut document = document(text, Kind::Pdf);
    document.layout = Layout { unit: Unit::Page, starts: vec![(0, 1), (17, 2), (35, 5)], headings: Vec::new() };
    let found = Chunker::new(ChunkOptions { tokens: 20, overlap: 0 }, &Counter::Bytes).unwrap().chunk(&document);
    let pages: Vec<Option<u32>> = found.iter().map(|chunk| chunk.place).collect();
    assert_eq!(pages.first(), Some(&Some(1)));
    assert_eq!(pages.last(), Some(&Some(5)));
    assert!(pages.contains(&Some(2)));
    document.layout.unit = Unit::None;
    let found = Chunker::new(ChunkOptions::default(), &Counter::Bytes).unwrap().chunk(&document);
    assert_eq!(found[0].place, None);
}

#[test]
fn functions_stay_whole() {
    let function = |name: &str| format!("fn {name}() {{\n{}}}\n\n", "    let value = compute(1, 2);\n".repeat(12));
    let text: String = ["alpha", "beta", "gamma", "delta"].into_iter().map(function).collect();
    let tokens = Counter::WordPiece.count(&function("alpha")) * 3 / 2;
    let found = chunks(&text, Kind::Code(Language::Rust), tokens, &Counter::WordPiece);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|chunk| text[chunk.range.clone()].starts_with("fn ")), "{found:?}");
}

#[test]
fn short_chunks_join_their_neighbours() {
    let text = format!("{}\n\n\n\nshort\n\n\n\n{}", "alpha ".repeat(35), "omega ".repeat(35));
    let found = chunks(&text, Kind::Text, 40, &Counter::WordPiece);
    assert!(found.iter().all(|chunk| chunk.tokens >= 8), "{found:?}");
}

#[test]
fn overlap_repeats_words() {
    let text = prose(5000);
    let options = ChunkOptions { tokens: 50, overlap: 10 };
    let found = Chunker::new(options, &Counter::WordPiece).unwrap().chunk(&document(&text, Kind::Text));
    assert_sound(&text, &found, options, &Counter::WordPiece);
    let overlapping = || found.windows(2).filter(|pair| pair[1].range.start < pair[0].range.end);
    // A chunk of one word is not repeated.
    assert!(overlapping().count() * 20 >= (found.len() - 1) * 19, "{} of {}", overlapping().count(), found.len());
    for pair in overlapping() {
        let repeated = &text[pair[1].range.start..pair[0].range.end];
        let count = Counter::WordPiece.count(repeated);
        assert!((4..=10).contains(&count), "{repeated:?}");
    }
}

#[test]
fn options_are_checked() {
    assert!(Chunker::new(ChunkOptions { tokens: 0, overlap: 0 }, &Counter::Bytes).is_err());
    assert!(Chunker::new(ChunkOptions { tokens: 10, overlap: 6 }, &Counter::Bytes).is_err());
    assert_eq!(ChunkOptions::default().capped(100).tokens, 100);
}
