//! The open elements of a page that is read from its start to its end.
//!
//! No tree is built, so the depth of a page costs neither stack nor time. A few rules supply the
//! end tags that HTML allows to leave out; where a page breaks the rules of nesting, browsers may
//! show a text that is left out here, or the other way round.

use std::collections::HashMap;

use html5ever::LocalName;

use super::html::{Break, break_around, is_skipped};

/// How many open elements a search for a missing end tag looks at.
const REACH: usize = 64;

/// An element whose end tag has not come.
pub(super) struct OpenElement {
    pub(super) name: LocalName,
    /// Its content is no text of the page.
    pub(super) is_left_out: bool,
}

/// The open elements, the innermost last.
#[derive(Default)]
pub(super) struct OpenElements {
    stack: Vec<OpenElement>,
    /// How many elements of a name are open.
    counts: HashMap<LocalName, usize>,
    /// How many drawings and formulas are open: their elements follow other rules.
    foreign: usize,
}

impl OpenElements {
    pub(super) fn push(&mut self, element: OpenElement) {
        *self.counts.entry(element.name.clone()).or_default() += 1;
        self.foreign += usize::from(is_foreign(&element.name));
        self.stack.push(element);
    }

    /// Closes the innermost element if more than `depth` are open.
    pub(super) fn pop(&mut self, depth: usize) -> Option<OpenElement> {
        if self.stack.len() <= depth {
            return None;
        }
        let element = self.stack.pop()?;
        self.foreign -= usize::from(is_foreign(&element.name));
        if let Some(count) = self.counts.get_mut(&element.name) {
            *count -= 1;
        }
        Some(element)
    }

    /// Whether the content of the innermost element is left out.
    pub(super) fn is_left_out(&self) -> bool {
        self.stack.last().is_some_and(|element| element.is_left_out)
    }

    /// Whether a drawing or a formula is open.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign > 0
    }

    /// The rules by which a start tag closes elements.
    pub(super) fn closed_by_start(&self, name: &str) -> impl Iterator<Item = Rule> + use<> {
        let breaks_out = self.is_foreign() && break_around(name) >= Break::Paragraph;
        breaks_out.then_some(FOREIGN).into_iter().chain(rules(name).iter().copied())
    }

    /// The depth of the innermost of the elements that a rule closes.
    pub(super) fn find(&self, (closed, within): Rule) -> Option<usize> {
        let near = self.stack.iter().enumerate().rev().take(REACH);
        let mut near = near.skip_while(|(_, open)| !closed.contains(&&*open.name) && !within.contains(&&*open.name));
        near.next().filter(|(_, open)| closed.contains(&&*open.name)).map(|(depth, _)| depth)
    }

    /// The depth of the element that an end tag closes. That of a block closes everything in it;
    /// others do not close blocks.
    pub(super) fn closed_by_end(&self, name: &LocalName) -> Option<usize> {
        if self.counts.get(name).is_none_or(|count| *count == 0) {
            return None;
        }
        if is_block(name) {
            return self.stack.iter().rposition(|open| open.name == *name);
        }
        let near = self.stack.iter().enumerate().rev().take(REACH);
        let mut near = near.skip_while(|(_, open)| open.name != *name && !is_block(&open.name));
        near.next().filter(|(_, open)| open.name == *name).map(|(depth, _)| depth)
    }
}

fn is_block(name: &str) -> bool {
    break_around(name) != Break::None || is_skipped(name)
}

/// Whether an element is a drawing or a formula.
pub(super) fn is_foreign(name: &str) -> bool {
    matches!(name, "svg" | "math")
}

/// Elements that a start tag closes, unless they are outside of others.
pub(super) type Rule = (&'static [&'static str], &'static [&'static str]);

/// Elements of pages end a drawing, except in the parts of it that may have them.
const FOREIGN: Rule = (&["svg", "math"], &["foreignobject", "annotation-xml", "desc", "title"]);
const CELLS: &[&str] = &["table", "caption", "td", "th", "button", "object", "template"];
const PARAGRAPH: Rule = (&["p"], CELLS);
const LISTS: &[&str] = &["ul", "ol", "menu", "dir", "dl", "table", "td", "th"];
const HEADING: Rule =
    (&["h1", "h2", "h3", "h4", "h5", "h6"], &["div", "section", "article", "li", "td", "th", "table"]);

fn rules(name: &str) -> &'static [Rule] {
    match name {
        "li" => &[(&["li"], LISTS), PARAGRAPH],
        "dt" | "dd" => &[(&["dt", "dd"], LISTS), PARAGRAPH],
        "tr" => &[(&["tr"], &["table"])],
        "td" | "th" => &[(&["td", "th"], &["tr", "table"])],
        "tbody" | "thead" | "tfoot" => &[(&["tbody", "thead", "tfoot", "caption"], &["table"])],
        "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => &[PARAGRAPH, HEADING],
        "body" => &[],
        "summary" | "figcaption" => &[PARAGRAPH],
        _ if break_around(name) >= Break::Paragraph => &[PARAGRAPH],
        _ => &[],
    }
}
