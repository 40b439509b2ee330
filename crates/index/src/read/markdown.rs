//! Headings of Markdown, found line by line: linear in the text, whatever it is.

use crate::document::Heading;

/// The longest heading that is kept, in characters.
pub(super) const MAX_HEADING: usize = 200;

/// ATX (`## Title`) and setext (underlined) headings outside of code fences and front matter.
pub(super) fn headings(text: &str) -> Vec<Heading> {
    let mut headings = Vec::new();
    let mut fence: Option<(u8, usize)> = None;
    let mut previous: Option<(usize, &str)> = None;
    let mut offset = front_matter(text).len();
    for line in text[offset..].split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let indent = line.len() - line.trim_start_matches(' ').len();
        let content = line.trim();
        if let Some((mark, length)) = fence {
            if fence_of(content).is_some_and(|(m, l, rest)| m == mark && l >= length && rest.is_empty()) {
                fence = None;
            }
            continue;
        }
        if indent < 4
            && let Some((mark, length, _)) = fence_of(content)
        {
            fence = Some((mark, length));
            previous = None;
            continue;
        }
        if indent < 4
            && let Some((level, title)) = atx(content)
        {
            if !title.is_empty() {
                headings.push(heading(start, level, title));
            }
            previous = None;
            continue;
        }
        let underlines = !content.is_empty() && indent < 4 && previous.is_some();
        if let Some((at, title)) = previous
            && underlines
            && (content.bytes().all(|b| b == b'=') || content.bytes().all(|b| b == b'-'))
        {
            headings.push(heading(at, if content.starts_with('=') { 1 } else { 2 }, title));
            previous = None;
            continue;
        }
        // Only a paragraph of one line is taken for a setext heading: longer ones are rare, and
        // lines of lists, tables and quotes are none.
        let is_text = !content.is_empty() && indent < 4 && !content.starts_with(['-', '*', '+', '>', '|', '<']);
        previous = (is_text && previous.is_none()).then_some((start, content));
    }
    headings
}

/// The title: of the front matter, or the first heading of the first level.
pub(super) fn title(text: &str, headings: &[Heading]) -> Option<String> {
    let named = front_matter(text).lines().find_map(|line| line.strip_prefix("title:"));
    let named = named.map(|title| title.trim().trim_matches(['"', '\'']).to_string()).filter(|title| !title.is_empty());
    named.or_else(|| headings.iter().find(|h| h.level == 1).map(|h| h.text.clone()))
}

/// A block of YAML between lines of `---` at the top, with its last line; empty if there is none.
fn front_matter(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else { return "" };
    let mut end = text.len() - rest.len();
    for line in rest.split_inclusive('\n').take(500) {
        end += line.len();
        if line.trim_end() == "---" {
            return &text[..end];
        }
    }
    ""
}

/// The mark and length of a code fence, and what follows it.
fn fence_of(content: &str) -> Option<(u8, usize, &str)> {
    let mark = *content.as_bytes().first().filter(|b| matches!(b, b'`' | b'~'))?;
    let length = content.bytes().take_while(|&b| b == mark).count();
    let rest = content[length..].trim();
    (length >= 3 && !(mark == b'`' && rest.contains('`'))).then_some((mark, length, rest))
}

fn atx(content: &str) -> Option<(u8, &str)> {
    let level = content.bytes().take_while(|&b| b == b'#').count();
    let title = &content[level..];
    if !(1..=6).contains(&level) || !(title.is_empty() || title.starts_with([' ', '\t'])) {
        return None;
    }
    let title = title.trim();
    let without = title.trim_end_matches('#');
    let closed = without.is_empty() || without.ends_with([' ', '\t']);
    Some((u8::try_from(level).ok()?, if closed { without.trim_end() } else { title }))
}

fn heading(offset: usize, level: u8, title: &str) -> Heading {
    Heading { offset, level, text: title.chars().take(MAX_HEADING).collect() }
}
