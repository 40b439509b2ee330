//! The events of a conversation: the parts of its answers, as they are generated.

use super::answer_stream::{AnswerEvent, AnswerInfo, AnswerStream, TokenChoice};
use super::prompt::Calls;
use crate::error::Fault;
use crate::http_context::fresh_id;
use sconce_engine::{AnswerPart, Finish, ToolCallParser, ToolSyntax};
use std::collections::VecDeque;

/// An event of a conversation.
#[derive(Clone, Debug)]
pub(crate) enum ChatEvent {
    /// An answer grows.
    Part {
        /// Index of the answer.
        answer: usize,
        /// The new part. A text may be empty if it only has logprobs.
        part: AnswerPart,
        /// The logprobs of its tokens, if the request asks for them.
        logprobs: Vec<TokenChoice>,
    },
    /// An answer ends.
    End {
        /// Index of the answer.
        answer: usize,
        /// Why it ended.
        finish: ChatFinish,
    },
    /// All answers fail. The last event.
    Failed(Fault),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChatFinish {
    /// The model ended it.
    End,
    /// This stop string.
    Stop(String),
    /// The limit of tokens, or of the context.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// The answers to a chat request. Dropping it cancels unfinished ones.
pub(crate) struct Conversation {
    answers: AnswerStream,
    states: Vec<AnswerState>,
    ready: VecDeque<ChatEvent>,
    completion_tokens: usize,
    reasoning_tokens: usize,
    has_short_ids: bool,
}

/// State of one answer.
struct AnswerState {
    parser: Option<ToolCallParser>,
    /// Logprobs of tokens whose text the parser still holds back.
    logprobs: Vec<TokenChoice>,
}

impl AnswerState {
    fn new(calls: Option<&Calls>) -> AnswerState {
        let parser = calls.map(|calls| ToolCallParser::new(calls.syntax, calls.names.clone(), calls.parallel));
        AnswerState { parser, logprobs: Vec::new() }
    }

    fn push_text(&mut self, text: String) -> Vec<AnswerPart> {
        match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Text(text)],
        }
    }

    fn end(&mut self, finish: Finish) -> (Vec<AnswerPart>, ChatFinish) {
        let mut parts = self.parser.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        if parts.is_empty() && !self.logprobs.is_empty() {
            parts.push(AnswerPart::Text(String::new()));
        }
        let has_calls = self.parser.as_ref().is_some_and(|parser| parser.calls() > 0);
        let finish = match finish {
            Finish::Length => ChatFinish::Length,
            Finish::End | Finish::Stop(_) if has_calls => ChatFinish::ToolCalls,
            Finish::End => ChatFinish::End,
            Finish::Stop(stop) => ChatFinish::Stop(stop),
        };
        (parts, finish)
    }
}

impl Conversation {
    pub(super) fn new(answers: AnswerStream, calls: Option<&Calls>) -> Conversation {
        Conversation {
            states: (0..answers.info().answers).map(|_| AnswerState::new(calls)).collect(),
            answers,
            ready: VecDeque::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            has_short_ids: calls.is_some_and(|calls| calls.syntax == ToolSyntax::Mistral),
        }
    }

    /// What is known before the first token.
    pub(crate) fn info(&self) -> &AnswerInfo {
        self.answers.info()
    }

    /// The next event; `None` when all answers have ended or failed.
    pub(crate) async fn next(&mut self) -> Option<ChatEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.answers.next().await? {
                AnswerEvent::Text { answer, text, tokens, .. } => {
                    self.completion_tokens += tokens.len();
                    if let Some(state) = self.states.get_mut(answer) {
                        state.logprobs.extend(tokens.into_iter().flatten());
                        let parts = state.push_text(text);
                        self.queue(answer, parts);
                    }
                }
                AnswerEvent::End { answer, finish } => {
                    if let Some(state) = self.states.get_mut(answer) {
                        let (parts, finish) = state.end(finish);
                        self.queue(answer, parts);
                        self.ready.push_back(ChatEvent::End { answer, finish });
                    }
                }
                AnswerEvent::Failed(fault) => return Some(ChatEvent::Failed(fault)),
            }
        }
    }

    /// Queues parts; the first has the logprobs that were held back.
    fn queue(&mut self, answer: usize, parts: Vec<AnswerPart>) {
        for part in parts {
            let logprobs = self.states.get_mut(answer).map(|state| std::mem::take(&mut state.logprobs));
            self.ready.push_back(ChatEvent::Part { answer, part, logprobs: logprobs.unwrap_or_default() });
        }
    }

    /// Generated tokens of all answers so far, reasoning included.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    /// Generated tokens of the thoughts of all answers so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// A new id for a tool call: `prefix` and random digits. Mistral's templates only accept ids of
    /// nine letters and digits.
    pub(crate) fn call_id(&self, prefix: &str) -> String {
        match self.has_short_ids {
            true => fresh_id().chars().take(9).collect(),
            false => format!("{prefix}{}", fresh_id()),
        }
    }
}
