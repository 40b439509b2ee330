//! Snippets: the part of a passage with the most words of the query.

use std::ops::Range;

use super::Snippet;
use crate::store::{is_ideographic, terms, words};

/// More matches than these are not looked at.
const MAX_MATCHES: usize = 1_000;

/// A word of the passage that is one of the query.
struct Match {
    range: Range<usize>,
    term: usize,
}

/// The longest term that is looked for, in characters: one without spaces may be a whole book.
const MAX_TERM: usize = 64;

/// The terms of a query, for the snippets of all hits.
pub(super) struct Terms(Vec<String>);

impl Terms {
    pub(super) fn new(query: &str) -> Terms {
        Terms(terms(query).iter().map(|term| term.chars().take(MAX_TERM).collect()).collect())
    }

    /// The snippet of a passage that begins at byte `offset` of its document.
    pub(super) fn snippet(&self, passage: &str, offset: usize, max_bytes: usize) -> Snippet {
        let matches = self.matches(passage);
        let window = window(passage, &matches, max_bytes.max(1));
        let (text, highlights) = flat(passage, &window, &matches);
        Snippet { text, highlights, range: offset + window.start..offset + window.end }
    }

    /// The words of the query in a passage, in order. They do not overlap.
    fn matches(&self, passage: &str) -> Vec<Match> {
        let mut matches = Vec::new();
        for (start, word) in words(passage) {
            if matches.len() >= MAX_MATCHES {
                break;
            }
            if word.starts_with(is_ideographic) {
                self.ideographic_matches(start, word, &mut matches);
                continue;
            }
            let lower = word.to_lowercase();
            if let Some(term) = self.0.iter().position(|term| stem(term) == stem(&lower)) {
                matches.push(Match { range: start..start + word.len(), term });
            }
        }
        matches
    }

    /// Characters of a run that are next to each other in the query too.
    fn ideographic_matches(&self, start: usize, run: &str, matches: &mut Vec<Match>) {
        let characters: Vec<(usize, char)> = run.char_indices().collect();
        let mut at = 0;
        while at < characters.len() && matches.len() < MAX_MATCHES {
            let (from, rest) = (characters[at].0, &run[characters[at].0..]);
            let longest = |term: &String| common_prefix(rest, term);
            let found = self.0.iter().enumerate().map(|(i, term)| (longest(term), i)).max_by_key(|(n, _)| *n);
            match found {
                Some((n @ 1.., term)) => {
                    let to = characters.get(at + n).map_or(run.len(), |(to, _)| *to);
                    matches.push(Match { range: start + from..start + to, term });
                    at += n;
                }
                _ => at += 1,
            }
        }
    }
}

/// How many characters of `text` are at some place of `term` too: at least two, or the whole term.
fn common_prefix(text: &str, term: &str) -> usize {
    if !term.starts_with(is_ideographic) {
        return 0;
    }
    let same = |from: usize| text.chars().zip(term[from..].chars()).take_while(|(a, b)| a == b).count();
    let longest = term.char_indices().map(|(from, _)| same(from)).max().unwrap_or(0);
    if longest >= 2 || longest == term.chars().count() { longest } else { 0 }
}

/// A word without its English ending. Coarser than the index's stemmer, and only for highlights.
fn stem(word: &str) -> &str {
    const ENDINGS: [&str; 9] = ["ings", "ing", "ied", "ies", "ed", "es", "s", "e", "y"];
    let cut = |ending: &&str| word.strip_suffix(*ending).filter(|rest| rest.len() >= 3);
    ENDINGS.iter().find_map(cut).unwrap_or(word)
}

/// The part of the passage with the most different terms, then the most matches; the first of equal
/// ones.
fn window(passage: &str, matches: &[Match], max_bytes: usize) -> Range<usize> {
    let span = max_bytes.saturating_sub(max_bytes / 4).max(1);
    let mut best = (0, 0, 0..0);
    for (i, first) in matches.iter().enumerate() {
        let inside = matches[i..].iter().take_while(|m| m.range.end <= first.range.start + span);
        let mut found: Vec<usize> = Vec::new();
        let (mut count, mut end) = (0, first.range.end);
        for one in inside {
            count += 1;
            end = one.range.end;
            if !found.contains(&one.term) {
                found.push(one.term);
            }
        }
        if (found.len(), count) > (best.0, best.1) {
            best = (found.len(), count, first.range.start..end);
        }
    }
    let matched = best.2;
    // A quarter of what is left goes before the first match.
    let before = max_bytes.saturating_sub(matched.len()) / 4;
    let start = word_start(passage, matched.start.saturating_sub(before), matched.start);
    let end = passage.len().min(start + max_bytes);
    start..word_end(passage, end, matched.end.min(end))
}

/// The beginning of the first word from `at` on; `last` at the latest.
fn word_start(passage: &str, at: usize, last: usize) -> usize {
    let at = (at..=last).find(|i| passage.is_char_boundary(*i)).unwrap_or(last);
    if at == 0 {
        return 0;
    }
    let space = passage[at..last].find(char::is_whitespace).map(|space| at + space);
    let word = space.and_then(|space| passage[space..last].find(|c: char| !c.is_whitespace()).map(|word| space + word));
    // A long run without spaces is cut between characters.
    word.unwrap_or(if last - at > 40 { at } else { last })
}

/// The end of the last word before `at`; `first` at the earliest.
fn word_end(passage: &str, at: usize, first: usize) -> usize {
    if at >= passage.len() {
        return passage.len();
    }
    let at = (0..=at).rev().find(|i| passage.is_char_boundary(*i)).unwrap_or(0);
    let first = (0..=first.min(at)).rev().find(|i| passage.is_char_boundary(*i)).unwrap_or(0);
    match passage[first..at].rfind(char::is_whitespace) {
        Some(space) if at - (first + space) <= 40 => first + space,
        _ => at,
    }
}

/// The text of a window on one line, and where the matches are in it. White space becomes single
/// spaces; so do control characters, which a terminal would obey.
fn flat(passage: &str, window: &Range<usize>, matches: &[Match]) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(window.len());
    let mut highlights = Vec::new();
    let mut matches = matches.iter().filter(|m| m.range.start >= window.start && m.range.end <= window.end).peekable();
    let mut open = None;
    for (i, c) in passage[window.clone()].char_indices() {
        let at = window.start + i;
        if let Some(one) = matches.peek() {
            if at == one.range.start {
                open = Some(text.len());
            }
            if at == one.range.end {
                highlights.extend(open.take().map(|start| start..text.len()));
                matches.next();
                if matches.peek().is_some_and(|next| next.range.start == at) {
                    open = Some(text.len());
                }
            }
        }
        if !(c.is_whitespace() || c.is_control()) {
            text.push(c);
        } else if !text.is_empty() && !text.ends_with(' ') {
            text.push(' ');
        }
    }
    highlights.extend(open.map(|start| start..text.len()));
    text.truncate(text.trim_end().len());
    (text, highlights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(query: &str, passage: &str, max_bytes: usize) -> String {
        let Snippet { mut text, highlights, range } = Terms::new(query).snippet(passage, 1_000, max_bytes);
        assert!(range.start >= 1_000 && range.end <= 1_000 + passage.len() && range.len() <= max_bytes.max(1) + 3);
        for highlight in highlights.iter().rev() {
            text.insert(highlight.end, ']');
            text.insert(highlight.start, '[');
        }
        text
    }

    #[test]
    fn words_of_the_query_are_highlighted_in_all_their_forms() {
        let found = marked("indexing file", "The index  holds\nfiles; it indexes each File.", 200);
        assert_eq!(found, "The [index] holds [files]; it [indexes] each [File].");
        assert_eq!(marked("东京", "我爱东京塔", 100), "我爱[东京]塔");
        assert_eq!(marked("", "nothing to\u{1b}[31m see", 100), "nothing to [31m see");
        assert_eq!(marked("x", "", 100), "");
    }

    #[test]
    fn the_window_has_the_most_terms() {
        let passage = format!("alpha {}alpha beta gamma {}beta", "word ".repeat(100), "word ".repeat(100));
        let found = marked("alpha beta gamma", &passage, 80);
        assert!(found.contains("[alpha] [beta] [gamma]"), "{found}");
        assert!(found.starts_with("word") && found.ends_with("word"), "{found}");
    }

    #[test]
    fn any_length_and_any_text_will_do() {
        let texts =
            ["日本語のテキスト、とても長い文章です。".repeat(20), "x".repeat(500), "é ".repeat(100), "a\n\n\nb".into()];
        for text in &texts {
            for max_bytes in [0, 1, 2, 5, 17, 100, 10_000] {
                for query in ["日本語 x", "é", "b", "文章です", "none"] {
                    marked(query, text, max_bytes);
                }
            }
        }
    }
}
