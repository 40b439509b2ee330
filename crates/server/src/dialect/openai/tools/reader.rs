//! Tells calls from text in an answer, as it comes.

use super::object::{Found, Object};
use super::style::Style;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What an answer is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text for the user.
    Text(String),
    /// A call begins.
    Call {
        /// Which of the answer's calls.
        index: usize,
        /// Of which function.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Which of the answer's calls.
        index: usize,
        /// What is new.
        text: String,
    },
}

/// A longer name is none (Mistral writes names without quotes).
const LONGEST_NAME: usize = 256;

enum State {
    /// Text; a call without a mark may only stand at the beginning.
    Prose { fresh: bool },
    /// Behind the mark that opens a call.
    Opened,
    /// In a call. Until its name is told, all of it may still turn out to be text.
    Call { object: Box<Object>, marked: bool, told: bool, bare: bool },
    /// Behind a call.
    After { marked: bool },
    /// In what is left of a call that broke off after it was told.
    Lost,
    /// There may be no more calls, and what comes is nobody's.
    Closed,
}

/// Reads one answer.
pub(crate) struct Reader {
    style: Style,
    names: Arc<BTreeSet<String>>,
    /// The most calls of an answer.
    most: usize,
    calls: usize,
    state: State,
    /// Came, and not yet looked at.
    held: String,
    /// Looked at, and text after all unless a call is told.
    trial: String,
    pieces: Vec<Piece>,
}

impl Reader {
    /// Of a model that writes so, and may call these functions.
    pub(crate) fn new(style: Style, names: Arc<BTreeSet<String>>, parallel: bool) -> Reader {
        Reader {
            style,
            names,
            most: if parallel { usize::MAX } else { 1 },
            calls: 0,
            state: State::Prose { fresh: true },
            held: String::new(),
            trial: String::new(),
            pieces: Vec::new(),
        }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// What more text makes certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.pieces)
    }

    /// What is left at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        match &self.state {
            // Between a call and the end there is nothing to say.
            State::Prose { .. } if self.calls > 0 && held.trim().is_empty() => {}
            State::Prose { .. } => self.say(held),
            State::Opened | State::Call { told: false, .. } => {
                let trial = std::mem::take(&mut self.trial);
                self.say(trial + &held);
            }
            State::Call { .. } | State::After { .. } | State::Lost | State::Closed => {}
        }
        std::mem::take(&mut self.pieces)
    }

    /// Looks at what is held. Whether there may be more to see in it.
    fn step(&mut self) -> bool {
        match &mut self.state {
            State::Prose { fresh } => {
                let fresh = *fresh;
                self.prose(fresh)
            }
            State::Opened => self.opened(),
            State::Call { .. } => self.call(),
            State::After { marked } => {
                let marked = *marked;
                self.after(marked)
            }
            State::Lost => self.lost(),
            State::Closed => {
                self.held.clear();
                false
            }
        }
    }

    fn prose(&mut self, fresh: bool) -> bool {
        let rest = self.held.trim_start();
        if fresh {
            if rest.is_empty() {
                return false;
            }
            let inner = rest.strip_prefix('[').map_or(rest, str::trim_start);
            if inner.is_empty() {
                return false;
            }
            if inner.starts_with('{') {
                let at = self.held.len() - inner.len();
                self.trial = self.held.drain(..at).collect();
                self.begin(false);
                return true;
            }
        }
        let open = self.style.open();
        if let Some(at) = self.held.find(open) {
            let before: String = self.held.drain(..at).collect();
            self.say(before.trim_end().into());
            self.held.drain(..open.len());
            self.mark();
            return true;
        }
        // Blanks before a call are none of the text's, so they wait for what follows.
        let sure = self.held[..self.held.len() - begun(&self.held, open)].trim_end().len();
        if sure > 0 {
            let text = self.held.drain(..sure).collect();
            self.say(text);
            self.state = State::Prose { fresh: false };
        }
        false
    }

    /// Behind the mark that opens a call, which is text after all if none follows; but a control token never is.
    fn mark(&mut self) {
        self.trial = if self.style.close().is_some() { self.style.open().into() } else { String::new() };
        self.state = State::Opened;
    }

    fn opened(&mut self) -> bool {
        let inner = self.held.trim_start_matches(|c: char| c.is_whitespace() || c == '[');
        let Some(first) = inner.chars().next() else { return false };
        let at = self.held.len() - inner.len();
        if first == '{' {
            self.trial.extend(self.held.drain(..at));
            self.begin(true);
            return true;
        }
        if self.style == Style::Mistral {
            if let Some(brace) = inner.find('{') {
                let name = inner[..brace].split('[').next().unwrap_or_default().trim().to_owned();
                if !name.is_empty() && name.len() <= LONGEST_NAME {
                    self.trial.extend(self.held.drain(..at + brace));
                    return self.begin_named(&name);
                }
            } else if inner.len() <= LONGEST_NAME {
                return false;
            }
        }
        let held = std::mem::take(&mut self.held);
        self.give_up(&held);
        true
    }

    fn begin(&mut self, marked: bool) {
        self.state = State::Call { object: Box::new(Object::new()), marked, told: false, bare: false };
    }

    /// Where the name stands before the arguments: read on as if they were in an object with it.
    fn begin_named(&mut self, name: &str) -> bool {
        let mut object = Object::new();
        let mut none = Vec::new();
        let before = format!("{{\"name\": {}, \"arguments\": ", serde_json::Value::from(name));
        before.chars().for_each(|c| object.push(c, &mut none));
        self.state = State::Call { object: Box::new(object), marked: true, told: false, bare: true };
        true
    }

    fn call(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        let State::Call { object, marked, told, bare } = &mut self.state else { return false };
        let (marked, bare) = (*marked, *bare);
        let mut found = Vec::new();
        for (at, c) in held.char_indices() {
            found.clear();
            object.push(c, &mut found);
            if bare && object.is_between() {
                object.push('}', &mut found);
            }
            if !*told {
                self.trial.push(c);
            }
            let rest = &held[at + c.len_utf8()..];
            for one in found.drain(..) {
                match one {
                    Found::Name(name) if marked || self.names.contains(&name) => {
                        *told = true;
                        self.trial.clear();
                        self.pieces.push(Piece::Call { index: self.calls, name });
                        self.calls += 1;
                    }
                    Found::Arguments(text) => match self.pieces.last_mut() {
                        Some(Piece::Arguments { text: before, .. }) => before.push_str(&text),
                        _ => self.pieces.push(Piece::Arguments { index: self.calls - 1, text }),
                    },
                    Found::End => {
                        self.held = rest.into();
                        self.state = if self.calls < self.most { State::After { marked } } else { State::Closed };
                        return true;
                    }
                    Found::Broken if *told => {
                        self.held = rest.into();
                        self.state = State::Lost;
                        return true;
                    }
                    Found::Name(_) | Found::Broken => {
                        let rest = rest.to_owned();
                        self.give_up(&rest);
                        return true;
                    }
                }
            }
        }
        false
    }

    fn after(&mut self, marked: bool) -> bool {
        let (open, close) = (self.style.open(), self.style.close().unwrap_or("]"));
        let rest = self.held.trim_start_matches(|c: char| c.is_whitespace() || ",;]".contains(c)).to_owned();
        if let Some(behind) = rest.strip_prefix(close) {
            self.held = behind.into();
            return true;
        }
        if let Some(behind) = rest.strip_prefix(open) {
            self.held = behind.into();
            self.mark();
            return true;
        }
        self.held = rest;
        if self.held.starts_with('{') {
            self.trial.clear();
            self.begin(marked);
            return true;
        }
        if open.starts_with(&self.held) || close.starts_with(&self.held) {
            return false;
        }
        self.state = State::Prose { fresh: false };
        true
    }

    fn lost(&mut self) -> bool {
        let (open, close) = (self.style.open(), self.style.close().unwrap_or(self.style.open()));
        if let Some(at) = [open, close].iter().filter_map(|mark| self.held.find(mark)).min() {
            self.held.drain(..at);
            self.state = State::After { marked: true };
            return true;
        }
        let keep = begun(&self.held, open).max(begun(&self.held, close));
        self.held.drain(..self.held.len() - keep);
        false
    }

    /// What looked like a call is text, and so is what follows.
    fn give_up(&mut self, rest: &str) {
        let text = std::mem::take(&mut self.trial);
        self.say(text);
        self.held = rest.into();
        self.state = State::Prose { fresh: false };
    }

    fn say(&mut self, text: String) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(before)) => before.push_str(&text),
            _ => self.pieces.push(Piece::Text(text)),
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn begun(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n])).unwrap_or(0)
}
