//! Plain text, Markdown and source code: UTF-8, or UTF-16 with a byte order mark.

use super::error::ReadError;
use super::format::looks_like_text;
use super::source::Source;
use super::{Format, Limits, Reading, markdown};
use crate::document::{Document, Layout, Metadata, Unit};

/// Reads a file of plain text.
pub(super) fn read(source: Source, format: Format, limits: &Limits) -> Result<Reading, ReadError> {
    if !looks_like_text(&source.head) {
        return Err(ReadError::Binary);
    }
    let limit = limits.file_bytes.min(limits.text_bytes as u64);
    let (text, replaced) = decode(source.content(limit)?)?;
    let layout = match format {
        Format::Markdown => Layout { headings: markdown::headings(&text), ..lines() },
        _ => lines(),
    };
    let title = match format {
        Format::Markdown => markdown::title(&text, &layout.headings),
        _ => None,
    };
    let document = Document { title, kind: format.kind(), text, metadata: Metadata::new(), row: None, layout };
    Ok(Reading { documents: vec![document], notes: replaced_note(replaced).into_iter().collect() })
}

fn lines() -> Layout {
    Layout { unit: Unit::Line, ..Layout::default() }
}

/// The note about bytes that are no text.
pub(super) fn replaced_note(replaced: usize) -> Option<String> {
    (replaced > 0).then(|| format!("{replaced} sequences of bytes are not valid text and were replaced by U+FFFD"))
}

/// The text of a file's content, and how many characters had to be replaced.
pub(super) fn decode(content: Vec<u8>) -> Result<(String, usize), ReadError> {
    let (text, replaced) = match &content[..] {
        [0xff, 0xfe, rest @ ..] => decode_utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => decode_utf16(rest, u16::from_be_bytes),
        _ => decode_utf8(content),
    };
    // Most of a text in another 8-bit encoding is ASCII. Where most is not, it is no text. A
    // replacement character has three bytes.
    if replaced * 5 > text.len() {
        return Err(ReadError::Binary);
    }
    // NUL ends strings in C libraries behind us.
    let text = if text.contains('\0') { text.replace('\0', " ") } else { text };
    Ok((text, replaced))
}

fn decode_utf8(mut content: Vec<u8>) -> (String, usize) {
    if content.starts_with(b"\xef\xbb\xbf") {
        content.drain(..3);
    }
    match String::from_utf8(content) {
        Ok(text) => (text, 0),
        Err(error) => {
            let (mut text, mut replaced) = (String::new(), 0);
            for chunk in error.as_bytes().utf8_chunks() {
                text.push_str(chunk.valid());
                if !chunk.invalid().is_empty() {
                    text.push(char::REPLACEMENT_CHARACTER);
                    replaced += 1;
                }
            }
            (text, replaced)
        }
    }
}

fn decode_utf16(content: &[u8], unit: fn([u8; 2]) -> u16) -> (String, usize) {
    let (units, rest) = content.as_chunks::<2>();
    let (mut text, mut replaced) = (String::with_capacity(content.len()), rest.len());
    for decoded in char::decode_utf16(units.iter().map(|bytes| unit(*bytes))) {
        text.push(decoded.unwrap_or_else(|_| {
            replaced += 1;
            char::REPLACEMENT_CHARACTER
        }));
    }
    (text, replaced)
}
