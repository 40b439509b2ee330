//! Streaming tool-call parser: separates tool calls from text while an answer is generated.

use super::object::{Object, ObjectEvent};
use super::syntax::ToolSyntax;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A parsed part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text for the user.
    Text(String),
    /// A thought of a model that reasons.
    Reasoning(String),
    /// Start of a tool call.
    Call {
        /// Index of the call within the answer.
        index: usize,
        /// Function name.
        name: String,
    },
    /// Further arguments of a call.
    Arguments {
        /// Index of the call within the answer.
        index: usize,
        /// New text.
        text: String,
    },
}

/// A complete tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// Arguments, a JSON object as the model wrote it. The model may have made a mistake.
    pub arguments: String,
}

/// Longest function name (Mistral writes names without quotes, so anything could be one).
const MAX_NAME_LENGTH: usize = 256;

enum State {
    /// Text. A call without a marker may only be at the start of the answer (`fresh`).
    Prose { fresh: bool },
    /// After the marker that opens a call.
    Opened,
    /// Within a call. Until its name is emitted, all of it may turn out to be text.
    Call { object: Box<Object>, marked: bool, emitted: bool, bare: bool },
    /// After a call.
    After { marked: bool },
    /// Within the rest of a call that broke after its name was emitted.
    Broken,
    /// The limit of calls is reached; further text is dropped.
    Closed,
}

/// Parser of one answer, fed as it is generated.
///
/// ```
/// use sconce_engine::{ToolCallParser, ToolSyntax};
/// use std::{collections::BTreeSet, sync::Arc};
///
/// let names = Arc::new(BTreeSet::from(["weather".to_owned()]));
/// let answer = r#"<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>"#;
/// let (text, calls) = ToolCallParser::new(ToolSyntax::Tagged, names, true).parse(answer);
/// assert_eq!((text.as_str(), calls[0].name.as_str()), ("", "weather"));
/// assert_eq!(calls[0].arguments, r#"{"city": "Rome"}"#);
/// ```
pub struct ToolCallParser {
    syntax: ToolSyntax,
    names: Arc<BTreeSet<String>>,
    /// Most calls per answer.
    max_calls: usize,
    calls: usize,
    state: State,
    /// Text that is not parsed yet.
    pending: String,
    /// Parsed text of a possible call; emitted as text if it is none.
    candidate: String,
    parts: Vec<AnswerPart>,
}

impl ToolCallParser {
    /// For a model with this tool-call syntax that may call these functions. Unless `parallel`,
    /// only the first call is parsed.
    pub fn new(syntax: ToolSyntax, names: Arc<BTreeSet<String>>, parallel: bool) -> ToolCallParser {
        ToolCallParser {
            syntax,
            names,
            max_calls: if parallel { usize::MAX } else { 1 },
            calls: 0,
            state: State::Prose { fresh: true },
            pending: String::new(),
            candidate: String::new(),
            parts: Vec::new(),
        }
    }

    /// Parses a complete answer: the text for the user, and the calls.
    pub fn parse(mut self, answer: &str) -> (String, Vec<ToolCall>) {
        let mut parts = self.push(answer);
        parts.extend(self.finish());
        let (mut prose, mut calls) = (String::new(), Vec::<ToolCall>::new());
        for part in parts {
            match part {
                AnswerPart::Text(text) => prose.push_str(&text),
                // This parser makes none.
                AnswerPart::Reasoning(_) => {}
                AnswerPart::Call { name, .. } => calls.push(ToolCall { name, arguments: String::new() }),
                AnswerPart::Arguments { index, text } => {
                    if let Some(call) = calls.get_mut(index) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        (prose, calls)
    }

    /// Number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Adds text; returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.pending.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.parts)
    }

    /// Returns the rest at the end of the answer.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let pending = std::mem::take(&mut self.pending);
        match &self.state {
            // Whitespace after the last call is dropped.
            State::Prose { .. } if self.calls > 0 && pending.trim().is_empty() => {}
            State::Prose { .. } => self.emit_text(pending),
            State::Opened | State::Call { emitted: false, .. } => {
                let candidate = std::mem::take(&mut self.candidate);
                self.emit_text(candidate + &pending);
            }
            State::Call { .. } | State::After { .. } | State::Broken | State::Closed => {}
        }
        std::mem::take(&mut self.parts)
    }

    /// Parses pending text; returns whether more of it may be parsed.
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
            State::Broken => self.broken(),
            State::Closed => {
                self.pending.clear();
                false
            }
        }
    }

    fn prose(&mut self, fresh: bool) -> bool {
        let rest = self.pending.trim_start();
        if fresh {
            if rest.is_empty() {
                return false;
            }
            let inner = rest.strip_prefix('[').map_or(rest, str::trim_start);
            if inner.is_empty() {
                return false;
            }
            if inner.starts_with('{') {
                let at = self.pending.len() - inner.len();
                self.candidate = self.pending.drain(..at).collect();
                self.begin(false);
                return true;
            }
        }
        let open = self.syntax.open();
        if let Some(at) = self.pending.find(open) {
            let before: String = self.pending.drain(..at).collect();
            self.emit_text(before.trim_end().into());
            self.pending.drain(..open.len());
            self.mark();
            return true;
        }
        // Whitespace before a call does not belong to the text, so it is held back.
        let certain = self.pending[..self.pending.len() - partial_mark(&self.pending, open)].trim_end().len();
        if certain > 0 {
            let text = self.pending.drain(..certain).collect();
            self.emit_text(text);
            self.state = State::Prose { fresh: false };
        }
        false
    }

    /// After the marker that opens a call. If no call follows, the marker is text, unless it is a
    /// control token.
    fn mark(&mut self) {
        self.candidate = if self.syntax.close().is_some() { self.syntax.open().into() } else { String::new() };
        self.state = State::Opened;
    }

    fn opened(&mut self) -> bool {
        let inner = self.pending.trim_start_matches(|c: char| c.is_whitespace() || c == '[');
        let Some(first) = inner.chars().next() else { return false };
        let at = self.pending.len() - inner.len();
        if first == '{' {
            self.candidate.extend(self.pending.drain(..at));
            self.begin(true);
            return true;
        }
        if self.syntax == ToolSyntax::Mistral {
            if let Some(brace) = inner.find('{') {
                let name = inner[..brace].split('[').next().unwrap_or_default().trim().to_owned();
                if !name.is_empty() && name.len() <= MAX_NAME_LENGTH {
                    self.candidate.extend(self.pending.drain(..at + brace));
                    return self.begin_named(&name);
                }
            } else if inner.len() <= MAX_NAME_LENGTH {
                return false;
            }
        }
        let pending = std::mem::take(&mut self.pending);
        self.emit_as_text(&pending);
        true
    }

    fn begin(&mut self, marked: bool) {
        self.state = State::Call { object: Box::new(Object::new()), marked, emitted: false, bare: false };
    }

    /// For a name before the arguments: parse as if both were in one object.
    fn begin_named(&mut self, name: &str) -> bool {
        let mut object = Object::new();
        let mut none = Vec::new();
        let before = format!("{{\"name\": {}, \"arguments\": ", serde_json::Value::from(name));
        before.chars().for_each(|c| object.push(c, &mut none));
        self.state = State::Call { object: Box::new(object), marked: true, emitted: false, bare: true };
        true
    }

    fn call(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let State::Call { object, marked, emitted, bare } = &mut self.state else { return false };
        let (marked, bare) = (*marked, *bare);
        let mut found = Vec::new();
        for (at, c) in pending.char_indices() {
            found.clear();
            object.push(c, &mut found);
            if bare && object.is_between() {
                object.push('}', &mut found);
            }
            if !*emitted {
                self.candidate.push(c);
            }
            let rest = &pending[at + c.len_utf8()..];
            for one in found.drain(..) {
                match one {
                    ObjectEvent::Name(name) if marked || self.names.contains(&name) => {
                        *emitted = true;
                        self.candidate.clear();
                        self.parts.push(AnswerPart::Call { index: self.calls, name });
                        self.calls += 1;
                    }
                    ObjectEvent::Arguments(text) => match self.parts.last_mut() {
                        Some(AnswerPart::Arguments { text: before, .. }) => before.push_str(&text),
                        _ => self.parts.push(AnswerPart::Arguments { index: self.calls - 1, text }),
                    },
                    ObjectEvent::End => {
                        self.pending = rest.into();
                        self.state = if self.calls < self.max_calls { State::After { marked } } else { State::Closed };
                        return true;
                    }
                    ObjectEvent::Broken if *emitted => {
                        self.pending = rest.into();
                        self.state = State::Broken;
                        return true;
                    }
                    ObjectEvent::Name(_) | ObjectEvent::Broken => {
                        let rest = rest.to_owned();
                        self.emit_as_text(&rest);
                        return true;
                    }
                }
            }
        }
        false
    }

    fn after(&mut self, marked: bool) -> bool {
        let (open, close) = (self.syntax.open(), self.syntax.close().unwrap_or("]"));
        let rest = self.pending.trim_start_matches(|c: char| c.is_whitespace() || ",;]".contains(c)).to_owned();
        if let Some(rest_after) = rest.strip_prefix(close) {
            self.pending = rest_after.into();
            return true;
        }
        if let Some(rest_after) = rest.strip_prefix(open) {
            self.pending = rest_after.into();
            self.mark();
            return true;
        }
        self.pending = rest;
        if self.pending.starts_with('{') {
            self.candidate.clear();
            self.begin(marked);
            return true;
        }
        if open.starts_with(&self.pending) || close.starts_with(&self.pending) {
            return false;
        }
        self.state = State::Prose { fresh: false };
        true
    }

    fn broken(&mut self) -> bool {
        let (open, close) = (self.syntax.open(), self.syntax.close().unwrap_or(self.syntax.open()));
        if let Some(at) = [open, close].iter().filter_map(|mark| self.pending.find(mark)).min() {
            self.pending.drain(..at);
            self.state = State::After { marked: true };
            return true;
        }
        let keep = partial_mark(&self.pending, open).max(partial_mark(&self.pending, close));
        self.pending.drain(..self.pending.len() - keep);
        false
    }

    /// The candidate was no call: emit it as text and continue with `rest`.
    fn emit_as_text(&mut self, rest: &str) {
        let text = std::mem::take(&mut self.candidate);
        self.emit_text(text);
        self.pending = rest.into();
        self.state = State::Prose { fresh: false };
    }

    fn emit_text(&mut self, text: String) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Text(before)) => before.push_str(&text),
            _ => self.parts.push(AnswerPart::Text(text)),
        }
    }
}

/// Length of the longest suffix of `text` that is a prefix of `mark`.
fn partial_mark(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n])).unwrap_or(0)
}
