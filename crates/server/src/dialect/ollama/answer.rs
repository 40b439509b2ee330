//! The answer of a conversation in the form that chats and completions share.

use super::session::nanos;
use crate::conversation::{ChatEvent, ChatFinish, Conversation, TokenChoice, TokenText};
use crate::error::{Dialect, Fault};
use crate::http_context::HttpContext;
use crate::ndjson;
use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sconce_api::ollama::{CalledFunction, Cost, Logprob, MessageCall, TopLogprob};
use sconce_engine::AnswerPart;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A part of an answer, or a whole one.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) thinking: Option<String>,
    pub(super) calls: Vec<MessageCall>,
    pub(super) logprobs: Vec<Logprob>,
    /// At the end of the answer: the reason and the cost.
    pub(super) end: Option<(&'static str, Cost)>,
}

impl Piece {
    fn add(&mut self, more: Piece) {
        self.text.push_str(&more.text);
        if let Some(thinking) = more.thinking {
            self.thinking.get_or_insert_default().push_str(&thinking);
        }
        self.calls.extend(more.calls);
        self.logprobs.extend(more.logprobs);
        self.end = self.end.or(more.end);
    }
}

/// Reads the pieces of an answer.
pub(super) struct Pieces {
    conversation: Conversation,
    context: Arc<HttpContext>,
    /// How long the request waited for the model.
    load: Duration,
    /// When the conversation was begun, and when its first token came.
    begun_at: Instant,
    first_at: Option<Instant>,
    /// A call whose arguments are not complete: Ollama's clients get whole calls.
    call: Option<OpenCall>,
    ready: VecDeque<Result<Piece, Fault>>,
}

struct OpenCall {
    index: usize,
    id: String,
    name: String,
    arguments: String,
}

impl OpenCall {
    /// The call; `None` if the limit of tokens cut its arguments off.
    fn complete(self) -> Option<MessageCall> {
        let text = if self.arguments.trim().is_empty() { "{}" } else { &self.arguments };
        let arguments = serde_json::from_str(text).ok()?;
        let function = CalledFunction { index: Some(self.index), name: self.name, arguments };
        Some(MessageCall { id: Some(self.id), function })
    }
}

impl Pieces {
    pub(super) fn new(
        conversation: Conversation,
        context: &Arc<HttpContext>,
        (load, begun_at): (Duration, Instant),
    ) -> Pieces {
        let (context, ready) = (context.clone(), VecDeque::new());
        Pieces { conversation, context, load, begun_at, first_at: None, call: None, ready }
    }

    /// The next piece; `None` after the last.
    async fn next(&mut self) -> Option<Result<Piece, Fault>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            match self.conversation.next().await? {
                ChatEvent::Part { part, logprobs, .. } => {
                    self.first_at.get_or_insert_with(Instant::now);
                    self.push(part, logprobs.into_iter().map(logprob).collect());
                }
                ChatEvent::End { finish, .. } => {
                    let calls = self.take_call();
                    let end = Some((reason(&finish), self.cost()));
                    if !calls.is_empty() {
                        self.ready.push_back(Ok(Piece { calls, ..Piece::default() }));
                    }
                    self.ready.push_back(Ok(Piece { end, ..Piece::default() }));
                }
                ChatEvent::Failed(fault) => self.ready.push_back(Err(fault)),
            }
        }
    }

    fn push(&mut self, part: AnswerPart, logprobs: Vec<Logprob>) {
        let mut piece = Piece { logprobs, ..Piece::default() };
        match part {
            AnswerPart::Text(text) => piece.text = text,
            AnswerPart::Reasoning(thinking) => piece.thinking = Some(thinking),
            AnswerPart::Call { index, name } => {
                piece.calls = self.take_call();
                let id = self.conversation.call_id("call_");
                self.call = Some(OpenCall { index, id, name, arguments: String::new() });
            }
            AnswerPart::Arguments { text, .. } => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(&text);
                }
            }
        }
        let thinks = piece.thinking.as_ref().is_some_and(|thinking| !thinking.is_empty());
        if thinks || !piece.text.is_empty() || !piece.calls.is_empty() || !piece.logprobs.is_empty() {
            self.ready.push_back(Ok(piece));
        }
    }

    fn take_call(&mut self) -> Vec<MessageCall> {
        self.call.take().and_then(OpenCall::complete).into_iter().collect()
    }

    fn cost(&self) -> Cost {
        let (now, first_at) = (Instant::now(), self.first_at.unwrap_or_else(Instant::now));
        Cost {
            total_duration: Some(nanos(now.saturating_duration_since(self.context.started_at))),
            load_duration: Some(nanos(self.load)),
            prompt_eval_count: Some(self.conversation.info().prompt_tokens),
            prompt_eval_duration: Some(nanos(first_at.saturating_duration_since(self.begun_at))),
            eval_count: Some(self.conversation.completion_tokens()),
            eval_duration: Some(nanos(now.saturating_duration_since(first_at))),
        }
    }
}

fn reason(finish: &ChatFinish) -> &'static str {
    match finish {
        ChatFinish::Length => "length",
        ChatFinish::End | ChatFinish::Stop(_) | ChatFinish::ToolCalls => "stop",
    }
}

fn logprob(choice: TokenChoice) -> Logprob {
    let TokenChoice { chosen: TokenText { text: token, bytes, .. }, logprob, top } = choice;
    let top =
        top.into_iter().map(|(TokenText { text: token, bytes, .. }, logprob)| TopLogprob { token, logprob, bytes });
    Logprob { token, logprob: logprob.unwrap_or_default(), bytes, top_logprobs: top.collect() }
}

/// The response: one object, or a line for each piece. `write` makes the API's type of a piece.
pub(super) async fn respond<T: Serialize>(
    mut pieces: Pieces,
    is_stream: bool,
    write: impl Fn(Piece) -> T + Send + 'static,
) -> Result<Response, Fault> {
    if !is_stream {
        let mut whole = Piece::default();
        while let Some(piece) = pieces.next().await {
            whole.add(piece?);
        }
        return Ok(Json(write(whole)).into_response());
    }
    let lines = stream::unfold((pieces, write), |(mut pieces, write)| async move {
        let line: Bytes = match pieces.next().await? {
            Ok(piece) => ndjson::line(&write(piece)),
            Err(fault) => ndjson::line(&fault.body(Dialect::Ollama)),
        };
        Some((line, (pieces, write)))
    });
    Ok(ndjson::answer(lines))
}
