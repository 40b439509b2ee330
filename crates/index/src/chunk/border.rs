//! Where a text may be cut: the best border in a window, found in one look at the window.

use std::ops::Range;

use crate::document::Kind;

/// The range without white space around it.
pub(super) fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..start + part.trim().len()
}

/// Ranges of at most `bytes` bytes that cover a range, cut at the best borders.
pub(super) fn sections(
    text: &str,
    range: Range<usize>,
    bytes: usize,
    kind: Kind,
) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = range.start;
    std::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let end = if range.end - start <= bytes {
            range.end
        } else {
            best(&text[..range.end], start, start + bytes / 2..start + bytes, kind)
        };
        let section = start..end;
        start = end;
        Some(section)
    })
}

/// Where to cut a text in two: the best border in its middle third. The text's length if it has
/// only one character.
pub(super) fn middle(text: &str, kind: Kind) -> usize {
    best(text, 0, text.len() / 3..text.len() * 2 / 3, kind)
}

/// The kinds of borders, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Border {
    /// Before a heading of Markdown, or a definition at the top level of code.
    Structure,
    Paragraph,
    Line,
    Sentence,
    Word,
}

const BORDERS: usize = 5;

/// The last of the best borders in a window. It is behind `start`, and on a character boundary.
pub(super) fn best(text: &str, start: usize, window: Range<usize>, kind: Kind) -> usize {
    let low = text.floor_char_boundary(window.start.max(start));
    let high = text.floor_char_boundary(window.end);
    let mut last: [Option<usize>; BORDERS] = [None; BORDERS];
    let mut is_blank_line = false;
    let mut previous = '\0';
    for (i, c) in text.get(low..high).unwrap_or_default().char_indices() {
        let end = low + i + c.len_utf8();
        if let Some(border) = border_after(previous, c, is_blank_line, &text[end..], kind) {
            last[border as usize] = Some(end);
        }
        match c {
            '\n' => is_blank_line = true,
            c if !c.is_whitespace() => is_blank_line = false,
            _ => {}
        }
        previous = c;
    }
    let border = last.into_iter().flatten().find(|&end| end > start);
    border.or_else(|| (high > start).then_some(high)).unwrap_or_else(|| next_char(text, start))
}

/// The border behind a character, by the character before it and what follows.
fn border_after(previous: char, c: char, is_blank_line: bool, rest: &str, kind: Kind) -> Option<Border> {
    let next = rest.as_bytes().first();
    match c {
        '\n' => Some(match kind {
            Kind::Markdown if next == Some(&b'#') => Border::Structure,
            Kind::Code(_) if is_blank_line && next.is_some_and(|b| b.is_ascii_alphabetic() || b"/#@_".contains(b)) => {
                Border::Structure
            }
            _ if is_blank_line => Border::Paragraph,
            _ => Border::Line,
        }),
        // Sentences of Chinese and Japanese, whose words no spaces separate.
        '。' | '！' | '？' | '．' | '।' => Some(Border::Sentence),
        '、' | '，' | '；' => Some(Border::Word),
        c if c.is_whitespace() && matches!(previous, '.' | '!' | '?') => Some(Border::Sentence),
        c if c.is_whitespace() => Some(Border::Word),
        _ => None,
    }
}

fn next_char(text: &str, start: usize) -> usize {
    text.get(start..).and_then(|rest| rest.chars().next()).map_or(text.len(), |c| start + c.len_utf8())
}
