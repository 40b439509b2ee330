//! HTML pages: the visible text, with line breaks where blocks end.

use std::cell::RefCell;

use html5ever::LocalName;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer};

use super::error::ReadError;
use super::html_elements::{OpenElement, OpenElements, is_foreign};
use super::markdown::MAX_HEADING;
use super::source::Source;
use super::{Limits, Reading, text};
use crate::document::{Document, Heading, Kind, Layout, Metadata, Value};

/// More headings than this structure no page.
const MAX_HEADINGS: usize = 100_000;

/// Reads an HTML file.
pub(super) fn read(source: Source, limits: &Limits) -> Result<Reading, ReadError> {
    let content = source.content(limits.file_bytes)?;
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
    let page = Page { text_bytes, ..Page::default() };
    let tokenizer = Tokenizer::new(Sink(RefCell::new(page)), Default::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from_slice(html));
    // It comes back when the input ends: the sink asks for nothing else.
    let _ = tokenizer.feed(&input);
    tokenizer.end();
    tokenizer.sink.0.into_inner().finish()
}

struct Sink(RefCell<Page>);

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        let mut page = self.0.borrow_mut();
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => return page.start(tag),
            Token::TagToken(tag) => page.end(&tag.name),
            Token::CharacterTokens(text) => page.text(&text),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

/// What must stand between two pieces of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Break {
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
    elements: OpenElements,
    /// How many `<pre>` are open.
    preformatted: usize,
    /// A `<pre>` has begun: a newline at its start does not count.
    at_start_of_pre: bool,
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
    /// A start tag. The answer says how the tokenizer reads what follows.
    fn start(&mut self, tag: Tag) -> TokenSinkResult<()> {
        for rule in self.elements.closed_by_start(&tag.name) {
            if let Some(depth) = self.elements.find(rule) {
                self.close(depth);
            }
        }
        let is_void = is_void(&tag.name) || (tag.self_closing && (self.elements.is_foreign() || is_foreign(&tag.name)));
        let raw = if self.elements.is_foreign() { None } else { raw_text(&tag.name) };
        let is_left_out = self.elements.is_left_out() || is_skipped(&tag.name) || is_hidden(&tag);
        if !self.elements.is_left_out() {
            self.describe(&tag);
        }
        if !is_left_out {
            self.open_element(&tag.name);
        }
        if !is_void {
            self.elements.push(OpenElement { name: tag.name, is_left_out });
        }
        raw.map_or(TokenSinkResult::Continue, TokenSinkResult::RawData)
    }

    /// An end tag.
    fn end(&mut self, name: &LocalName) {
        match self.elements.closed_by_end(name) {
            Some(depth) => self.close(depth),
            // Such as a second `</p>`.
            None if !self.elements.is_left_out() => self.pending = self.pending.max(break_around(name)),
            None => {}
        }
    }

    /// Closes elements until `depth` are open.
    fn close(&mut self, depth: usize) {
        while let Some(element) = self.elements.pop(depth) {
            if !element.is_left_out {
                self.close_element(&element.name);
            }
        }
    }

    /// What a tag says about the page.
    fn describe(&mut self, tag: &Tag) {
        match &*tag.name {
            "html" => self.keep("lang", attribute(tag, "lang")),
            "meta" if attribute(tag, "name").is_some_and(|name| name.eq_ignore_ascii_case("description")) => {
                self.keep("description", attribute(tag, "content"));
            }
            _ => {}
        }
    }

    fn open_element(&mut self, name: &str) {
        match name {
            "title" if self.title.is_none() => self.in_title = true,
            "br" => self.pending = self.pending.max(Break::Line),
            "pre" | "textarea" => {
                self.preformatted += 1;
                self.at_start_of_pre = true;
            }
            _ => {}
        }
        if let Some(level) = heading_level(name) {
            self.pending = Break::Section;
            self.heading = Some(OpenHeading { level, start: None });
        }
        self.pending = self.pending.max(break_around(name));
    }

    fn close_element(&mut self, name: &str) {
        match name {
            "title" => self.in_title = false,
            "pre" | "textarea" => self.preformatted = self.preformatted.saturating_sub(1),
            _ => {}
        }
        if heading_level(name).is_some()
            && let Some(OpenHeading { level, start: Some(start) }) = self.heading.take()
            && self.headings.len() < MAX_HEADINGS
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

    fn text(&mut self, text: &str) {
        if self.elements.is_left_out() {
            return;
        }
        if self.in_title {
            let title = self.title.get_or_insert_default();
            if title.len() < MAX_HEADING * 4 {
                title.push_str(text);
            }
        } else if self.preformatted > 0 {
            let is_start = std::mem::take(&mut self.at_start_of_pre);
            self.write(text.strip_prefix('\n').filter(|_| is_start).unwrap_or(text));
        } else {
            self.write_words(text);
        }
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

/// The text on one line. Control characters have no meaning in it.
fn collapse(text: &str) -> String {
    let text: String = text.chars().filter(|c| c.is_whitespace() || !c.is_control()).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn attribute<'a>(tag: &'a Tag, name: &str) -> Option<&'a str> {
    tag.attrs.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
}

/// Elements that have no content and no end tag.
fn is_void(name: &str) -> bool {
    matches!(
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
    )
}

/// How the content of an element is read that has no elements.
fn raw_text(name: &str) -> Option<RawKind> {
    match name {
        "title" | "textarea" => Some(RawKind::Rcdata),
        "style" | "xmp" | "iframe" | "noembed" | "noframes" | "noscript" => Some(RawKind::Rawtext),
        "script" => Some(RawKind::ScriptData),
        _ => None,
    }
}

fn heading_level(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
        _ => None,
    }
}

/// Elements whose content is no text, or is the same on every page.
pub(super) fn is_skipped(name: &str) -> bool {
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

fn is_hidden(tag: &Tag) -> bool {
    let is_none = |style: &str| {
        let style: String = style.chars().take(1000).filter(|c| !c.is_whitespace()).collect();
        style.to_ascii_lowercase().contains("display:none")
    };
    attribute(tag, "hidden").is_some()
        || attribute(tag, "aria-hidden") == Some("true")
        || attribute(tag, "style").is_some_and(is_none)
}

/// What stands before and behind an element.
pub(super) fn break_around(name: &str) -> Break {
    match name {
        "p" | "div" | "center" | "dialog" | "menu" | "dir" | "hgroup" | "search" | "listing" | "section"
        | "article" | "main" | "aside" | "header" | "footer" | "ul" | "ol" | "dl" | "table" | "blockquote" | "pre"
        | "figure" | "form" | "fieldset" | "details" | "address" | "hr" | "body" | "h1" | "h2" | "h3" | "h4" | "h5"
        | "h6" => Break::Paragraph,
        "li" | "dt" | "dd" | "tr" | "summary" | "figcaption" | "caption" | "option" | "legend" | "title" => Break::Line,
        "td" | "th" | "textarea" | "button" => Break::Space,
        _ => Break::None,
    }
}
