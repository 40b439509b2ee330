//! Streaming tool-call parser: separates tool calls from text while an answer is generated.

use super::marks::{CallMarks, partial_mark};
use super::object::{Object, ObjectEvent};
use super::part::{AnswerPart, ToolCall};
use super::python::{self, NameLength, PythonCall};
use super::syntax::ToolSyntax;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest function name (Mistral writes names without quotes, so anything could be one).
const MAX_NAME_LENGTH: usize = 256;

enum State {
    /// Text. A call without a marker may only be at the start of the answer (`fresh`).
    Prose { fresh: bool },
    /// After the marker that opens a call.
    Opened(CallMarks),
    /// Within a call. Until its name is emitted, all of it may turn out to be text.
    Call { object: Box<Object>, emitted: bool, bare: bool },
    /// At the start of a call as Python writes it.
    Python,
    /// After a call.
    After { python: bool },
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
    /// The markers of the last call; `None` if it has none.
    marks: Option<CallMarks>,
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
            marks: None,
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
            State::Opened(_) | State::Python | State::Call { emitted: false, .. } => {
                let candidate = std::mem::take(&mut self.candidate);
                self.emit_text(candidate + &pending);
            }
            State::Call { .. } | State::After { .. } | State::Broken | State::Closed => {}
        }
        std::mem::take(&mut self.parts)
    }

    /// Parses pending text; returns whether more of it may be parsed.
    fn step(&mut self) -> bool {
        match self.state {
            State::Prose { fresh } => self.prose(fresh),
            State::Opened(marks) => self.opened(marks),
            State::Call { .. } => self.call(),
            State::Python => self.python(),
            State::After { python } => self.after(python),
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
            let at = self.pending.len() - inner.len();
            if inner.starts_with('{') {
                self.candidate = self.pending.drain(..at).collect();
                self.begin(None);
                return true;
            }
            if self.syntax.has_python() && rest.starts_with('[') && !inner.starts_with("print") {
                match self.python_call(inner) {
                    PythonCall::Incomplete => return false,
                    PythonCall::Call { .. } => {
                        self.candidate = self.pending.drain(..at).collect();
                        (self.marks, self.state) = (None, State::Python);
                        return true;
                    }
                    PythonCall::None => {}
                }
            }
        }
        let marks = self.syntax.call_marks();
        let found = marks.iter().filter_map(|marks| Some((self.pending.find(marks.open)?, *marks)));
        if let Some((at, marks)) = found.min_by_key(|(at, _)| *at) {
            let text = self.pending.get(..at).unwrap_or_default().trim_end().len();
            let before: String = self.pending.drain(..text).collect();
            self.emit_text(before);
            // Whitespace before a call does not belong to the text.
            let space: String = self.pending.drain(..at - text).collect();
            self.pending.drain(..marks.open.len());
            self.mark(marks, space);
            return true;
        }
        let partial = marks.iter().map(|marks| partial_mark(&self.pending, marks.open)).max().unwrap_or(0);
        // Whitespace that may precede a call is held back.
        let certain = self.pending.get(..self.pending.len() - partial).unwrap_or_default().trim_end().len();
        if certain > 0 {
            let text = self.pending.drain(..certain).collect();
            self.emit_text(text);
            self.state = State::Prose { fresh: false };
        }
        false
    }

    /// After the marker that opens a call. If no call follows, the marker is text, unless it is a
    /// control token.
    fn mark(&mut self, marks: CallMarks, space: String) {
        self.candidate = if marks.is_text { space + marks.open } else { String::new() };
        self.state = State::Opened(marks);
    }

    fn opened(&mut self, marks: CallMarks) -> bool {
        let inner = self.pending.trim_start_matches(|c: char| c.is_whitespace() || c == '[');
        let Some(first) = inner.chars().next() else { return false };
        let at = self.pending.len() - inner.len();
        if first == '{' {
            self.candidate.extend(self.pending.drain(..at));
            self.begin(Some(marks));
            return true;
        }
        if self.syntax.has_names_first() {
            if let Some(brace) = inner.find('{') {
                let name = inner.get(..brace).unwrap_or_default().split('[').next().unwrap_or_default().trim();
                if !name.is_empty() && name.len() <= MAX_NAME_LENGTH {
                    let name = name.to_owned();
                    self.candidate.extend(self.pending.drain(..at + brace));
                    return self.begin_named(&name, marks);
                }
            } else if inner.len() <= MAX_NAME_LENGTH {
                return false;
            }
        }
        if self.syntax.has_python() {
            match self.python_call(inner) {
                PythonCall::Incomplete => return false,
                PythonCall::Call { .. } => {
                    self.candidate.extend(self.pending.drain(..at));
                    (self.marks, self.state) = (Some(marks), State::Python);
                    return true;
                }
                PythonCall::None => {}
            }
        }
        let pending = std::mem::take(&mut self.pending);
        self.emit_as_text(&pending);
        true
    }

    fn begin(&mut self, marks: Option<CallMarks>) {
        self.marks = marks;
        self.state = State::Call { object: Box::new(Object::new()), emitted: false, bare: false };
    }

    /// For a name before the arguments: parse as if both were in one object.
    fn begin_named(&mut self, name: &str, marks: CallMarks) -> bool {
        let mut object = Object::new();
        let mut none = Vec::new();
        let before = format!("{{\"name\": {}, \"arguments\": ", serde_json::Value::from(name));
        before.chars().for_each(|c| object.push(c, &mut none));
        self.marks = Some(marks);
        self.state = State::Call { object: Box::new(object), emitted: false, bare: true };
        true
    }

    /// Whether a name alone makes a call.
    fn is_certain(&self) -> bool {
        self.marks.is_some_and(|marks| marks.is_certain)
    }

    fn call(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let is_certain = self.is_certain();
        let State::Call { object, emitted, bare } = &mut self.state else { return false };
        let bare = *bare;
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
            let rest = pending.get(at + c.len_utf8()..).unwrap_or_default();
            for one in found.drain(..) {
                match one {
                    ObjectEvent::Name(name) if is_certain || self.names.contains(&name) => {
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
                        self.end_call(false);
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

    /// The call as Python writes it at the start of `text`.
    fn python_call(&self, text: &str) -> PythonCall {
        python::read(text, &|name, length| match length {
            NameLength::Prefix => self.names.iter().any(|known| known.starts_with(name)),
            NameLength::Whole => self.names.contains(name),
        })
    }

    fn python(&mut self) -> bool {
        match self.python_call(&self.pending) {
            PythonCall::Call { name, arguments, len } => {
                self.pending.drain(..len);
                self.candidate.clear();
                self.parts.push(AnswerPart::Call { index: self.calls, name });
                self.parts.push(AnswerPart::Arguments { index: self.calls, text: arguments });
                self.calls += 1;
                self.end_call(true);
            }
            // The state is entered for complete calls only.
            PythonCall::Incomplete | PythonCall::None => {
                let pending = std::mem::take(&mut self.pending);
                self.emit_as_text(&pending);
            }
        }
        true
    }

    fn end_call(&mut self, python: bool) {
        self.state = if self.calls < self.max_calls { State::After { python } } else { State::Closed };
    }

    fn after(&mut self, python: bool) -> bool {
        let rest = self.pending.trim_start_matches(|c: char| c.is_whitespace() || ",;]".contains(c)).to_owned();
        let all = self.syntax.call_marks();
        // A list needs no marker that closes it.
        let close = self.marks.or(all.first().copied()).and_then(|marks| marks.close).unwrap_or("]");
        if let Some(rest_after) = rest.strip_prefix(close) {
            self.pending = rest_after.into();
            return true;
        }
        if let Some((marks, rest_after)) = all.iter().find_map(|m| Some((*m, rest.strip_prefix(m.open)?))) {
            self.pending = rest_after.into();
            self.mark(marks, String::new());
            return true;
        }
        self.pending = rest;
        if self.pending.starts_with('{') {
            self.candidate.clear();
            self.begin(self.marks);
            return true;
        }
        if python {
            match self.python_call(&self.pending) {
                PythonCall::Call { .. } => {
                    self.candidate.clear();
                    self.state = State::Python;
                    return true;
                }
                PythonCall::Incomplete => return false,
                PythonCall::None => {}
            }
        }
        if close.starts_with(&self.pending) || all.iter().any(|marks| marks.open.starts_with(&self.pending)) {
            return false;
        }
        self.state = State::Prose { fresh: false };
        true
    }

    fn broken(&mut self) -> bool {
        let all = self.syntax.call_marks();
        let marks: Vec<&str> = all.iter().flat_map(|marks| [Some(marks.open), marks.close]).flatten().collect();
        if let Some(at) = marks.iter().filter_map(|mark| self.pending.find(mark)).min() {
            self.pending.drain(..at);
            self.marks = self.marks.or(all.first().copied());
            self.state = State::After { python: false };
            return true;
        }
        let keep = marks.iter().map(|mark| partial_mark(&self.pending, mark)).max().unwrap_or(0);
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
