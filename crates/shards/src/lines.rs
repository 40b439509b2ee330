//! Divides a file of lines into parts with a bounded number of rows and bytes, in one pass.

use crate::manifest::hex;
use sha2::{Digest, Sha256};

/// Sizes of parts.
#[derive(Clone, Copy, Debug)]
pub struct SplitLimits {
    /// Most rows of a part.
    pub rows: u64,
    /// A part takes no further line beyond this many bytes.
    pub bytes: u64,
    /// Most bytes of a line that is shown to the caller.
    pub line: usize,
}

/// A part of a file of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePart {
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    /// Line number of the first line, from 1.
    pub first_row: u64,
    /// Lines that are not blank.
    pub rows: u64,
    /// SHA-256 of the bytes, in hex.
    pub sha256: String,
}

/// Divides lines into parts as their bytes come in. Only one line is in memory.
pub struct LineSplitter<F> {
    limits: SplitLimits,
    on_line: F,
    parts: Vec<LinePart>,
    /// Bytes and lines before the current position.
    position: u64,
    lines: u64,
    /// The current part.
    start: u64,
    first_row: u64,
    rows: u64,
    hash: Sha256,
    /// The current line, as much as is shown, and whether it has a visible character.
    line: Vec<u8>,
    line_bytes: u64,
    is_blank: bool,
}

impl<F: FnMut(u64, &[u8])> LineSplitter<F> {
    /// A splitter that calls `on_line` with the number and the bytes of each line that is not blank
    /// and not longer than the limit. A line limit of 0 shows no lines.
    pub fn new(limits: SplitLimits, on_line: F) -> LineSplitter<F> {
        LineSplitter {
            limits,
            on_line,
            parts: Vec::new(),
            position: 0,
            lines: 0,
            start: 0,
            first_row: 1,
            rows: 0,
            hash: Sha256::new(),
            line: Vec::new(),
            line_bytes: 0,
            is_blank: true,
        }
    }

    /// Takes the next bytes of the file.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (head, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            self.hash.update(head);
            self.position += head.len() as u64;
            self.line_bytes += head.len() as u64;
            self.is_blank &= head.iter().all(u8::is_ascii_whitespace);
            if self.line_bytes <= self.limits.line as u64 {
                self.line.extend_from_slice(head);
            }
            if end.is_some() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        self.lines += 1;
        if !self.is_blank {
            self.rows += 1;
            if self.line_bytes <= self.limits.line as u64 {
                (self.on_line)(self.lines, &self.line);
            }
        }
        self.line.clear();
        (self.line_bytes, self.is_blank) = (0, true);
        if self.rows >= self.limits.rows || self.position - self.start >= self.limits.bytes {
            self.end_part();
        }
    }

    fn end_part(&mut self) {
        let hash = std::mem::take(&mut self.hash);
        // Blank lines alone are no part: they join the next one, or are left out at the end.
        if self.rows > 0 {
            self.parts.push(LinePart {
                start: self.start,
                end: self.position,
                first_row: self.first_row,
                rows: self.rows,
                sha256: hex(&hash.finalize()),
            });
        }
        (self.start, self.first_row, self.rows) = (self.position, self.lines + 1, 0);
    }

    /// The parts, and the bytes of the file.
    pub fn finish(mut self) -> (Vec<LinePart>, u64) {
        if self.line_bytes > 0 {
            self.end_line();
        }
        if self.position > self.start {
            self.end_part();
        }
        (self.parts, self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sconce_testkit::check;

    const LIMITS: SplitLimits = SplitLimits { rows: 2, bytes: 1 << 20, line: 8 };

    fn split(limits: SplitLimits, content: &[u8], chunk: usize) -> (Vec<LinePart>, Vec<(u64, Vec<u8>)>) {
        let mut seen = Vec::new();
        let mut splitter = LineSplitter::new(limits, |number, line| seen.push((number, line.to_vec())));
        content.chunks(chunk).for_each(|bytes| splitter.feed(bytes));
        let (parts, size) = splitter.finish();
        assert_eq!(size, content.len() as u64);
        (parts, seen)
    }

    #[test]
    fn parts_end_between_lines() {
        let (parts, seen) = split(LIMITS, b"a\n\nbb\nc\n  \nlonger line\nd", 3);
        let places: Vec<_> = parts.iter().map(|p| (p.start, p.end, p.first_row, p.rows)).collect();
        assert_eq!(places, [(0, 6, 1, 2), (6, 23, 4, 2), (23, 24, 7, 1)]);
        assert_eq!(parts[0].sha256, hex(&Sha256::digest(b"a\n\nbb\n")));
        let numbers: Vec<u64> = seen.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 3, 4, 7], "without the blank lines and the one that is too long");
        assert_eq!(seen[1].1, b"bb\n");
        assert!(split(LIMITS, b"", 1).0.is_empty());
        assert!(split(LIMITS, b"\n \n", 1).0.is_empty());
    }

    #[test]
    fn parts_hold_every_row_once_however_the_bytes_come() {
        let line = prop_oneof![Just(""), Just("x"), Just(" "), Just("some words"), Just("{}\r")];
        let input = (vec(line, 0..40), 1u64..5, 1u64..40, 1usize..20, any::<bool>());
        check(300, &input, |(lines, rows, bytes, chunk, ends)| {
            let mut content = lines.join("\n");
            if ends {
                content.push('\n');
            }
            let limits = SplitLimits { rows, bytes, line: 100 };
            let (parts, seen) = split(limits, content.as_bytes(), chunk);
            assert_eq!((&parts, &seen), (&split(limits, content.as_bytes(), 1000).0, &seen));
            let text = |part: &LinePart| &content[part.start as usize..part.end as usize];
            let mut rows_of_parts = Vec::new();
            for part in &parts {
                assert!((1..=rows).contains(&part.rows));
                assert_eq!(part.sha256, hex(&Sha256::digest(text(part))));
                let numbered = text(part).lines().zip(part.first_row..).filter(|(line, _)| !line.trim().is_empty());
                let numbered: Vec<_> = numbered.map(|(line, number)| (number, line.to_string())).collect();
                assert_eq!(numbered.len() as u64, part.rows);
                rows_of_parts.extend(numbered);
            }
            let all = content.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
            let all: Vec<_> = all.map(|(line, number)| (number, line.to_string())).collect();
            assert_eq!(rows_of_parts, all);
            assert_eq!(seen.len(), all.len());
        });
    }
}
