//! Text from indexed files, as a terminal may show it.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;

/// How text is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Not at all: for pipes and files.
    Plain,
    /// Bold, for a terminal.
    Bold,
}

impl Style {
    /// Bold on a terminal, unless `NO_COLOR` is set.
    pub(crate) fn of_stdout() -> Style {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !is_plain { Style::Bold } else { Style::Plain }
    }

    /// Marks a printable text.
    pub(crate) fn mark(self, text: &str) -> String {
        match self {
            Style::Bold if !text.is_empty() => format!("\x1b[1m{text}\x1b[0m"),
            _ => text.to_string(),
        }
    }
}

/// A text without terminal escape sequences and other control characters, except newlines and tabs.
/// Characters that change the direction of writing are removed too: they could show a path as
/// another.
pub(crate) fn printable(text: &str) -> String {
    let mut rest = text.chars();
    let mut clean = String::with_capacity(text.len());
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' => clean.push(c),
            '\x1b' => skip_escape(&mut rest),
            // The one-character forms of ESC [, and of the sequences that contain a string.
            '\u{9b}' => skip_csi(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => skip_string(&mut rest),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean
}

/// Skips the rest of a sequence that ESC began.
fn skip_escape(rest: &mut std::str::Chars<'_>) {
    let before = rest.clone();
    match rest.next() {
        Some('[') => skip_csi(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => skip_string(rest),
        // Intermediate characters and a final one, such as ESC ( B.
        Some(' '..='/') => while let Some(' '..='/') = rest.next() {},
        Some('0'..='~') => {}
        // Not a sequence: the character stays.
        _ => *rest = before,
    }
}

/// Skips parameters and the final character of a control sequence.
fn skip_csi(rest: &mut std::str::Chars<'_>) {
    let mut before = rest.clone();
    while let Some(c) = rest.next() {
        match c {
            ' '..='?' => before = rest.clone(),
            '@'..='~' => return,
            // Broken off: what follows is text.
            _ => {
                *rest = before;
                return;
            }
        }
    }
}

/// Skips a string up to its terminator. Without one, only the introducer is removed.
fn skip_string(rest: &mut std::str::Chars<'_>) {
    let before = rest.clone();
    while let Some(c) = rest.next() {
        match c {
            '\x07' | '\u{9c}' => return,
            '\x1b' if rest.clone().next() == Some('\\') => {
                rest.next();
                return;
            }
            '\n' => break,
            _ => {}
        }
    }
    *rest = before;
}

/// A printable text on one line, with single spaces.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text on one line, with the ranges of it (ascending, in bytes) marked. Ranges that are not in
/// the text are ignored.
pub(crate) fn highlighted(text: &str, highlights: &[Range<usize>], style: Style) -> String {
    let mut line = String::with_capacity(text.len());
    let mut at = 0;
    for range in highlights {
        let (Some(before), Some(marked)) = (text.get(at..range.start), text.get(range.clone())) else { continue };
        push_words(&mut line, before, Style::Plain);
        push_words(&mut line, marked, style);
        at = range.end;
    }
    push_words(&mut line, text.get(at..).unwrap_or_default(), Style::Plain);
    line.trim_end().to_string()
}

/// Adds a part of a text. Whitespace at its ends becomes one space between parts.
fn push_words(line: &mut String, part: &str, style: Style) {
    let part = printable(part);
    let words = part.split_whitespace().collect::<Vec<_>>().join(" ");
    let has_space = |at: Option<char>| at.is_some_and(char::is_whitespace);
    if has_space(part.chars().next()) && !line.is_empty() && !line.ends_with(' ') {
        line.push(' ');
    }
    line.push_str(&style.mark(&words));
    if !words.is_empty() && has_space(part.chars().next_back()) {
        line.push(' ');
    }
}

/// A path as printed: below the working directory relative to it.
pub(crate) fn source_path(path: &Path, from: Option<&Path>) -> String {
    let shown = from.and_then(|from| path.strip_prefix(from).ok()).filter(|rest| !rest.as_os_str().is_empty());
    one_line_path(&shown.unwrap_or(path).to_string_lossy())
}

/// Spaces of a path stay as they are; newlines and tabs in it would break the line.
fn one_line_path(path: &str) -> String {
    printable(path).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_removed() {
        for (text, want) in [
            ("plain ä 日本", "plain ä 日本"),
            ("a\x1b[31mred\x1b[0m b", "ared b"),
            ("a\x1b]0;title\x07b", "ab"),
            ("a\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
            ("a\x1bPq#0\x1b\\b", "ab"),
            ("a\u{9b}2Jb\u{9d}0;t\u{9c}c", "abc"),
            ("a\x1b(Bb\x1bcc", "abc"),
            ("a\x07\x08\r\0b\x7fc", "abc"),
            ("line\n\ttab", "line\n\ttab"),
            // Broken sequences lose their introducer, not the text behind them.
            ("a\x1b", "a"),
            ("a\x1b[", "a"),
            ("a\x1b[31äb", "aäb"),
            ("a\x1b]no end", "ano end"),
            ("a\x1b]no end\nb\x07", "ano end\nb"),
            ("a\x1bäb", "aäb"),
            ("evil\u{202e}gpj.exe", "evilgpj.exe"),
        ] {
            assert_eq!(printable(text), want, "{text:?}");
        }
    }

    #[test]
    fn nothing_printable_has_a_control_character() {
        // Every pair and triple of characters that begin, continue or end sequences.
        let parts = ["\x1b", "[", "]", "\\", "3", "m", "(", "\x07", "\u{9b}", "\u{9d}", "\u{9c}", "ä", "\u{202e}"];
        for a in parts {
            for b in parts {
                for c in parts {
                    let text = format!("{a}{b}{c}{a}");
                    let clean = printable(&text);
                    assert!(!clean.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}: {clean:?}");
                }
            }
        }
    }

    #[test]
    fn highlights_are_marked_on_one_line() {
        let text = "The cat\n  sat on the mat.";
        let ranges = [4..7, 21..24];
        assert_eq!(highlighted(text, &ranges, Style::Plain), "The cat sat on the mat.");
        assert_eq!(highlighted(text, &ranges, Style::Bold), "The \x1b[1mcat\x1b[0m sat on the \x1b[1mmat\x1b[0m.");
        // A sequence that spans a highlight's edge is not a sequence any more.
        let hostile = "a\x1b[31mb";
        assert_eq!(highlighted(hostile, &[0..3, 5..6], Style::Plain), "a31mb");
        // Ranges beyond the text, inside of a character, or out of order.
        let wrong = [1..2, 90..99, Range { start: 5, end: 3 }, 0..1];
        assert_eq!(highlighted("äb", &wrong, Style::Bold), "äb");
    }

    #[test]
    fn paths_are_shown_from_the_working_directory() {
        let from = Some(Path::new("/home/a"));
        assert_eq!(source_path(Path::new("/home/a/b/c.md"), from), "b/c.md");
        assert_eq!(source_path(Path::new("/home/ab/c.md"), from), "/home/ab/c.md");
        assert_eq!(source_path(Path::new("/x/\x1b[2Ja  b\n.md"), None), "/x/a  b .md");
    }
}
