//! The events of a conversation: the parts of its answers, as they are generated.

use super::answer_stream::{AnswerEvent, AnswerInfo, AnswerStream, TokenChoice};
use super::prompt::{Calls, Prompt};
use crate::error::Fault;
use crate::http_context::fresh_id;
use sconce_api::timings::{PromptProgress, Timings};
use sconce_engine::{AnswerParser, AnswerPart, Finish, ReasoningSyntax, ToolCallParser};
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

/// An event of a conversation, or the progress of its prompt.
#[derive(Clone, Debug)]
pub(crate) enum ChatUpdate {
    /// A part of the prompt was computed.
    Progress(PromptProgress),
    /// An event.
    Event(ChatEvent),
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

/// How to parse the answers to a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Parsing {
    calls: Option<Calls>,
    /// The markers of thoughts, and whether the prompt opens one.
    thoughts: Option<(ReasoningSyntax, bool)>,
}

impl Parsing {
    pub(super) fn of(prompt: &Prompt) -> Parsing {
        let thoughts = prompt.thoughts.map(|thoughts| (thoughts.syntax, thoughts.syntax.is_opened_by(&prompt.text)));
        Parsing { calls: prompt.calls.clone(), thoughts }
    }

    fn parser(&self) -> AnswerParser {
        let mut parser = AnswerParser::default();
        if let Some((syntax, is_open)) = self.thoughts {
            parser = parser.with_thoughts(syntax, is_open);
        }
        if let Some(calls) = &self.calls {
            parser = parser.with_calls(ToolCallParser::new(calls.syntax, calls.names.clone(), calls.parallel));
        }
        parser
    }
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
    parser: AnswerParser,
    /// Logprobs of tokens whose text the parser still holds back.
    logprobs: Vec<TokenChoice>,
}

impl AnswerState {
    fn end(&mut self, finish: Finish) -> (Vec<AnswerPart>, ChatFinish) {
        let mut parts = self.parser.finish();
        if parts.is_empty() && !self.logprobs.is_empty() {
            parts.push(AnswerPart::Text(String::new()));
        }
        let has_calls = self.parser.calls() > 0;
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
    pub(super) fn new(answers: AnswerStream, parsing: &Parsing) -> Conversation {
        let state = |_| AnswerState { parser: parsing.parser(), logprobs: Vec::new() };
        Conversation {
            states: (0..answers.info().answers).map(state).collect(),
            answers,
            ready: VecDeque::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            has_short_ids: parsing.calls.as_ref().is_some_and(|calls| calls.syntax.has_short_ids()),
        }
    }

    /// What is known before the first token.
    pub(crate) fn info(&self) -> &AnswerInfo {
        self.answers.info()
    }

    /// The next event; `None` when all answers have ended or failed.
    #[allow(dead_code, reason = "for dialects that do not report progress")]
    pub(crate) async fn next(&mut self) -> Option<ChatEvent> {
        loop {
            if let ChatUpdate::Event(event) = self.next_update().await? {
                return Some(event);
            }
        }
    }

    /// The next event or progress of the prompt; `None` when all answers have ended or failed. There
    /// is progress when the prompt begins, and after each of its parts if the request asks for it.
    pub(crate) async fn next_update(&mut self) -> Option<ChatUpdate> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(ChatUpdate::Event(event));
            }
            match self.answers.next().await? {
                AnswerEvent::Progress(_) => {
                    let progress = self.answers.clock(0).progress(self.info().prompt_tokens);
                    return Some(ChatUpdate::Progress(progress));
                }
                AnswerEvent::Text { answer, text, tokens, .. } => {
                    self.completion_tokens += tokens.len();
                    if let Some(state) = self.states.get_mut(answer) {
                        let count = tokens.len();
                        state.logprobs.extend(tokens.into_iter().flatten());
                        // The engine sends a thought, with its markers, in events of its own.
                        let was_reasoning = state.parser.is_reasoning();
                        let parts = state.parser.push(&text);
                        if was_reasoning || state.parser.is_reasoning() {
                            self.reasoning_tokens += count;
                        }
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
                AnswerEvent::Failed(fault) => return Some(ChatUpdate::Event(ChatEvent::Failed(fault))),
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

    /// The timings of the first answer so far.
    pub(crate) fn timings(&self) -> Timings {
        self.answers.clock(0).timings(self.info().prompt_tokens)
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
