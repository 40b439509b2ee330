//! HTML pages: the visible text, with line breaks where blocks end.

use std::path::Path;

use scraper::node::Element;
use scraper::{Html, Node};

use super::error::ReadError;
use super::html_depth::limit_depth;
use super::markdown::MAX_HEADING;
use super::{Limits, Reading, source, text};
use crate::document::{Document, Heading, Kind, Layout, Metadata, Value};

/// Reads an HTML file.
pub(super) fn read(path: &Path, limits: &Limits) -> Result<Reading, ReadError> {
    let content = source::open(path)?.content(limits.file_bytes)?;
    let (html, replaced) = decode(content)?;
    let (document, is_cut) = parse(&html, limits.text_bytes);
    let mut notes: Vec<String> = text::replaced_note(replaced).into_iter().collect();
    if is_cut {
        notes.push(format!("only the first {} bytes of the text were read", limits.text_bytes));
    }
    Ok(Reading { documents: vec![document], notes })
}

/// UTF-8, UTF-16 with a byte order mark, or Windows-1252, which is what browsers assume for pages
/// that declare ISO 8859-1.
fn decode(content: Vec<u8>) -> Result<(String, usize), ReadError> {
    let head = content[..content.len().min(1024)].to_ascii_lowercase();
    let declares = |name: &[u8]| head.windows(name.len()).any(|window| window == name);
    let is_latin = declares(b"charset=iso-8859-1") || declares(b"charset=\"iso-8859-1") || declares(b"windows-1252");
    if is_latin && std::str::from_utf8(&content).is_err() {
        return Ok((content.into_iter().map(windows_1252).collect(), 0));
    }
    text::decode(content)
}

fn windows_1252(byte: u8) -> char {
    const C1: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘',
        '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match byte {
        0 => ' ',
        0x80..=0x9f => C1[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

/// The document of a page, and whether its text was cut at the limit.
pub(super) fn parse(html: &str, text_bytes: usize) -> (Document, bool) {
    let html = Html::parse_document(&limit_depth(html));
    let mut page = Page { text_bytes, ..Page::default() };
    // Without recursion: the depth of a page must not reach the stack's end.
    let mut node = html.tree.root();
    'walk: loop {
        if page.open(node.value()) {
            if let Some(child) = node.first_child() {
                node = child;
                continue;
            }
            page.close(node.value());
        }
        loop {
            if let Some(next) = node.next_sibling() {
                node = next;
                break;
            }
            let Some(parent) = node.parent() else { break 'walk };
            page.close(parent.value());
            node = parent;
        }
    }
    page.finish()
}

/// What must stand between two pieces of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Break {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
    /// Before a heading: more newlines than anywhere else, so that the chunker prefers it.
    Section,
}

#[derive(Default)]
struct Page {
    text: String,
    text_bytes: usize,
    is_cut: bool,
    pending: Break,
    /// How many `<pre>` are open.
    preformatted: usize,
    heading: Option<OpenHeading>,
    headings: Vec<Heading>,
    /// The text of `<title>`, while it is open and after.
    title: Option<String>,
    in_title: bool,
    metadata: Metadata,
}

struct OpenHeading {
    level: u8,
    /// Where its text begins, once it has any.
    start: Option<usize>,
}

impl Page {
    /// Enters a node; false to leave out what is in it.
    fn open(&mut self, node: &Node) -> bool {
        match node {
            Node::Text(text) if self.in_title => {
                let title = self.title.get_or_insert_default();
                if title.len() < MAX_HEADING * 4 {
                    title.push_str(text);
                }
                false
            }
            Node::Text(text) if self.preformatted > 0 => {
                self.write(text.trim_end_matches('\r'));
                false
            }
            Node::Text(text) => {
                self.write_words(text);
                false
            }
            Node::Element(element) => self.open_element(element),
            Node::Document | Node::Fragment => true,
            _ => false,
        }
    }

    fn open_element(&mut self, element: &Element) -> bool {
        let name = element.name();
        match name {
            "html" => self.keep("lang", element.attr("lang")),
            "meta" if element.attr("name").is_some_and(|n| n.eq_ignore_ascii_case("description")) => {
                self.keep("description", element.attr("content"));
            }
            "title" if self.title.is_none() => self.in_title = true,
            "br" => self.pending = self.pending.max(Break::Line),
            "pre" | "textarea" => self.preformatted += 1,
            _ => {}
        }
        if is_skipped(name) || is_hidden(element) {
            // `close` is not called for it.
            self.in_title = false;
            return false;
        }
        if let Some(level) = heading_level(name) {
            self.pending = Break::Section;
            self.heading = Some(OpenHeading { level, start: None });
        }
        self.pending = self.pending.max(break_around(name));
        true
    }

    /// Leaves a node that was entered.
    fn close(&mut self, node: &Node) {
        let Node::Element(element) = node else { return };
        let name = element.name();
        match name {
            "title" => self.in_title = false,
            "pre" | "textarea" => self.preformatted = self.preformatted.saturating_sub(1),
            _ => {}
        }
        if heading_level(name).is_some()
            && let Some(OpenHeading { level, start: Some(start) }) = self.heading.take()
        {
            // Signs that link to the heading itself are no part of it.
            let text = collapse(&self.text[start..]);
            let text = text.trim_matches(['§', '¶', '#', ' ']);
            if !text.is_empty() {
                let text = text.chars().take(MAX_HEADING).collect();
                self.headings.push(Heading { offset: start, level, text });
            }
        }
        self.pending = self.pending.max(break_around(name));
    }

    /// Text whose white space means one space.
    fn write_words(&mut self, text: &str) {
        for (i, word) in text.split(|c: char| c.is_ascii_whitespace()).enumerate() {
            if i > 0 {
                self.pending = self.pending.max(Break::Space);
            }
            self.write(word);
        }
    }

    /// Text as it is, after the break that is due.
    fn write(&mut self, text: &str) {
        let room = self.text_bytes.saturating_sub(self.text.len() + 3);
        let kept = &text[..text.floor_char_boundary(room)];
        self.is_cut |= kept.len() < text.len();
        if kept.is_empty() {
            return;
        }
        let due = match std::mem::take(&mut self.pending) {
            _ if self.text.is_empty() => "",
            Break::None => "",
            Break::Space if self.text.ends_with(char::is_whitespace) => "",
            Break::Space => " ",
            Break::Line => "\n",
            Break::Paragraph => "\n\n",
            Break::Section => "\n\n\n",
        };
        self.text.push_str(due);
        if let Some(OpenHeading { start: start @ None, .. }) = &mut self.heading {
            *start = Some(self.text.len());
        }
        // Other control characters have no meaning in a text.
        self.text.extend(kept.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')));
    }

    fn keep(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value.map(collapse).filter(|value| !value.is_empty()) else { return };
        let value = value.chars().take(1000).collect();
        self.metadata.entry(key.to_string()).or_insert(Value::Text(value));
    }

    fn finish(self) -> (Document, bool) {
        let title = self.title.map(|title| collapse(&title).chars().take(MAX_HEADING).collect::<String>());
        let first = || self.headings.iter().find(|h| h.level == 1).map(|h| h.text.clone());
        let title = title.filter(|title| !title.is_empty()).or_else(first);
        let layout = Layout { headings: self.headings, ..Layout::default() };
        let document =
            Document { title, kind: Kind::Html, text: self.text, metadata: self.metadata, row: None, layout };
        (document, self.is_cut)
    }
}

fn collapse(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn heading_level(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
        _ => None,
    }
}

/// Elements whose content is no text, or is the same on every page.
fn is_skipped(name: &str) -> bool {
    matches!(
        name,
        "script"
            | "style"
            | "noscript"
            | "template"
            | "nav"
            | "svg"
            | "iframe"
            | "object"
            | "embed"
            | "canvas"
            | "audio"
            | "video"
            | "map"
            | "datalist"
            | "select"
            | "input"
            | "link"
            | "meta"
    )
}

fn is_hidden(element: &Element) -> bool {
    let is_none = |style: &str| {
        let style: String = style.chars().take(1000).filter(|c| !c.is_whitespace()).collect();
        style.to_ascii_lowercase().contains("display:none")
    };
    element.attr("hidden").is_some()
        || element.attr("aria-hidden") == Some("true")
        || element.attr("style").is_some_and(is_none)
}

fn break_around(name: &str) -> Break {
    match name {
        "p" | "div" | "section" | "article" | "main" | "aside" | "header" | "footer" | "ul" | "ol" | "dl" | "table"
        | "blockquote" | "pre" | "figure" | "form" | "fieldset" | "details" | "address" | "hr" | "body" | "h1"
        | "h2" | "h3" | "h4" | "h5" | "h6" => Break::Paragraph,
        "li" | "dt" | "dd" | "tr" | "summary" | "figcaption" | "caption" | "option" | "legend" | "title" => Break::Line,
        "td" | "th" | "textarea" | "button" => Break::Space,
        _ => Break::None,
    }
}
