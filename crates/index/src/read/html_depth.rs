//! A bound on the depth of HTML. For many tags, html5ever walks the list of open elements, so its
//! time grows with the square of the depth. Browsers bound the depth too.

use std::borrow::Cow;

/// No sensible page is deeper. Elements below become siblings: their text stays.
const MAX_DEPTH: usize = 512;

/// The page without the tags of elements that are nested too deeply.
pub(super) fn limit_depth(html: &str) -> Cow<'_, str> {
    let mut tags = Tags { html, at: 0 };
    let (mut depth, mut removed) = (0_usize, 0_usize);
    let mut out: Option<String> = None;
    let mut copied = 0;
    while let Some(tag) = tags.next_tag() {
        if tag.is_end && removed > 0 {
            removed -= 1;
        } else if tag.is_end {
            depth = depth.saturating_sub(1);
            continue;
        } else if depth < MAX_DEPTH {
            depth += 1;
            continue;
        } else {
            removed += 1;
        }
        let out = out.get_or_insert_default();
        out.push_str(&html[copied..tag.start]);
        out.push(' ');
        copied = tag.end;
    }
    match out {
        Some(mut out) => {
            out.push_str(&html[copied..]);
            Cow::Owned(out)
        }
        None => Cow::Borrowed(html),
    }
}

/// A tag of an element that nests.
struct Tag {
    start: usize,
    end: usize,
    is_end: bool,
}

/// The tags of a page, found without building a tree. Every byte is looked at once.
struct Tags<'a> {
    html: &'a str,
    at: usize,
}

impl Tags<'_> {
    fn next_tag(&mut self) -> Option<Tag> {
        loop {
            let start = self.at + self.html[self.at..].find('<')?;
            let rest = &self.html.as_bytes()[start + 1..];
            match rest {
                [b'!', b'-', b'-', ..] => self.at = self.after(start + 4, "-->")?,
                [b'!' | b'?', ..] => self.at = self.after(start + 2, ">")?,
                [b'/', c, ..] if c.is_ascii_alphabetic() => {
                    let name = self.name(start + 2);
                    let end = self.tag_end(start)?;
                    self.at = end;
                    if nests(&name) {
                        return Some(Tag { start, end, is_end: true });
                    }
                }
                [c, ..] if c.is_ascii_alphabetic() => {
                    let name = self.name(start + 1);
                    let end = self.tag_end(start)?;
                    self.at = end;
                    if is_raw_text(&name) {
                        self.at = self.end_of_raw_text(end, &name)?;
                    } else if nests(&name) {
                        return Some(Tag { start, end, is_end: false });
                    }
                }
                _ => self.at = start + 1,
            }
        }
    }

    fn after(&self, from: usize, mark: &str) -> Option<usize> {
        Some(from + self.html.get(from..)?.find(mark)? + mark.len())
    }

    fn name(&self, from: usize) -> String {
        let name =
            self.html.as_bytes()[from..].iter().take(32).take_while(|b| b.is_ascii_alphanumeric() || **b == b'-');
        name.map(|b| char::from(b.to_ascii_lowercase())).collect()
    }

    /// The end of the tag that begins at `start`; `>` in quotes does not count.
    fn tag_end(&self, start: usize) -> Option<usize> {
        let mut quote = None;
        let mut after_equals = false;
        for (i, &b) in self.html.as_bytes()[start..].iter().enumerate() {
            match (quote, b) {
                (Some(q), _) if q == b => quote = None,
                (Some(_), _) => {}
                (None, b'>') => return Some(start + i + 1),
                // A quote opens a value only after `=`, as in the parser.
                (None, b'"' | b'\'') if after_equals => quote = Some(b),
                _ => {}
            }
            if !b.is_ascii_whitespace() {
                after_equals = b == b'=';
            }
        }
        None
    }

    /// Where `</name` begins after the start tag of an element whose content is not parsed.
    fn end_of_raw_text(&self, from: usize, name: &str) -> Option<usize> {
        let bytes = self.html.as_bytes();
        let mut at = from;
        loop {
            at += self.html[at..].find("</")?;
            let candidate = bytes.get(at + 2..at + 2 + name.len())?;
            if candidate.eq_ignore_ascii_case(name.as_bytes()) {
                return Some(at);
            }
            at += 2;
        }
    }
}

fn is_raw_text(name: &str) -> bool {
    matches!(name, "script" | "style" | "textarea" | "title" | "xmp" | "iframe" | "noembed" | "noframes" | "noscript")
}

/// Whether open elements of this name can pile up. Void elements cannot, and those that the next
/// of their kind closes cannot either.
fn nests(name: &str) -> bool {
    !is_raw_text(name)
        && !matches!(
            name,
            "area"
                | "base"
                | "br"
                | "col"
                | "embed"
                | "hr"
                | "img"
                | "input"
                | "link"
                | "meta"
                | "param"
                | "source"
                | "track"
                | "wbr"
                | "p"
                | "li"
                | "dt"
                | "dd"
                | "tr"
                | "td"
                | "th"
                | "tbody"
                | "thead"
                | "tfoot"
                | "option"
                | "optgroup"
                | "a"
                | "nobr"
                | "button"
                | "html"
                | "head"
                | "body"
                | "h1"
                | "h2"
                | "h3"
                | "h4"
                | "h5"
                | "h6"
        )
}
