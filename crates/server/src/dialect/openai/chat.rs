//! `POST /v1/chat/completions`.

use super::{id, now};
use crate::app::App;
use crate::conversation::{self, ChatEvent, ChatFinish, Conversation, TokenChoice, TokenText};
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sconce_api::openai::chat::{
    AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, ChatRequest,
    TokenLogprob, TopLogprob,
};
use sconce_api::openai::common::{FinishReason, Usage};
use sconce_api::openai::tools::{FunctionCall, FunctionDelta, ToolCall, ToolCallDelta, ToolKind};
use sconce_engine::AnswerPart;
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(chat_completions))
}

/// Chat completion, complete or streamed.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest, responses(
    (status = 200, description = "The completion; a stream of chunks if `stream` is true", content(
        (ChatCompletion = "application/json"), (ChatChunk = "text/event-stream")))))]
async fn chat_completions(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ChatRequest>,
) -> Result<Response, Fault> {
    let is_stream = body.stream.unwrap_or(false);
    let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let conversation = conversation::begin(&app, &context, "v1/chat/completions", body).await?;
    let builder = ResponseBuilder::new(conversation);
    if is_stream {
        return Ok(stream(builder, include_usage));
    }
    complete(builder).await.map(|completion| Json(completion).into_response())
}

/// Builds responses and chunks from the events of a conversation.
struct ResponseBuilder {
    id: String,
    created: u64,
    conversation: Conversation,
    /// Logprobs of each answer that come without text, for its next chunk.
    logprobs: Vec<Vec<TokenLogprob>>,
}

impl ResponseBuilder {
    fn new(conversation: Conversation) -> ResponseBuilder {
        let logprobs = vec![Vec::new(); conversation.info().answers];
        ResponseBuilder { id: id("chatcmpl-"), created: now(), conversation, logprobs }
    }

    /// The next part of an answer; `None` after the last.
    async fn next(&mut self) -> Option<Result<ChatChunkChoice, Fault>> {
        loop {
            let (index, delta, finish_reason) = match self.conversation.next().await? {
                ChatEvent::Failed(fault) => return Some(Err(fault)),
                ChatEvent::End { answer, finish } => (answer, ChatDelta::default(), Some(reason(&finish))),
                ChatEvent::Part { answer, part, logprobs } => {
                    if let Some(held) = self.logprobs.get_mut(answer) {
                        held.extend(logprobs.into_iter().map(token));
                    }
                    match part {
                        AnswerPart::Text(text) if text.is_empty() => continue,
                        part => (answer, self.delta(part), None),
                    }
                }
            };
            let content = self.logprobs.get_mut(index).map(std::mem::take).unwrap_or_default();
            let logprobs = (!content.is_empty()).then_some(ChatLogprobs { content, refusal: None });
            return Some(Ok(ChatChunkChoice { index, delta, logprobs, finish_reason }));
        }
    }

    fn delta(&self, part: AnswerPart) -> ChatDelta {
        let call = |index, id: Option<String>, function| {
            let kind = id.is_some().then_some(ToolKind::Function);
            ChatDelta { tool_calls: Some(vec![ToolCallDelta { index, id, kind, function }]), ..ChatDelta::default() }
        };
        match part {
            AnswerPart::Text(text) => ChatDelta { content: Some(text), ..ChatDelta::default() },
            AnswerPart::Reasoning(text) => ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() },
            AnswerPart::Call { index, name } => {
                let function = FunctionDelta { name: Some(name), arguments: Some(String::new()) };
                call(index, Some(self.conversation.call_id("call_")), function)
            }
            AnswerPart::Arguments { index, text } => {
                call(index, None, FunctionDelta { name: None, arguments: Some(text) })
            }
        }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>, usage: Option<Option<Usage>>) -> ChatChunk {
        let info = self.conversation.info();
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: info.model.clone(),
            choices,
            system_fingerprint: info.fingerprint.clone(),
            usage,
        }
    }

    /// The first delta of an answer.
    fn opening(index: usize) -> ChatChunkChoice {
        let delta = ChatDelta { role: Some("assistant".into()), content: Some(String::new()), ..ChatDelta::default() };
        ChatChunkChoice { index, delta, ..ChatChunkChoice::default() }
    }

    fn usage(&self) -> Usage {
        let info = self.conversation.info();
        let usage = Usage::new(info.prompt_tokens, info.cached_tokens(), self.conversation.completion_tokens());
        match self.conversation.reasoning_tokens() {
            0 => usage,
            reasoning => usage.with_reasoning_tokens(reasoning),
        }
    }
}

fn reason(finish: &ChatFinish) -> FinishReason {
    match finish {
        ChatFinish::Length => FinishReason::Length,
        ChatFinish::ToolCalls => FinishReason::ToolCalls,
        ChatFinish::End | ChatFinish::Stop(_) => FinishReason::Stop,
    }
}

/// The complete response.
async fn complete(mut builder: ResponseBuilder) -> Result<ChatCompletion, Fault> {
    let open = |index| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant".into(), ..AssistantMessage::default() },
        logprobs: None,
        finish_reason: FinishReason::Stop,
    };
    let mut choices: Vec<ChatChoice> = (0..builder.conversation.info().answers).map(open).collect();
    while let Some(part) = builder.next().await {
        let part = part?;
        if let Some(choice) = choices.get_mut(part.index) {
            add(choice, part);
        }
    }
    for choice in &mut choices {
        // A message has a text, possibly empty, or tool calls.
        if choice.message.tool_calls.is_none() {
            choice.message.content.get_or_insert_default();
        }
    }
    let (usage, info) = (builder.usage(), builder.conversation.info());
    Ok(ChatCompletion {
        object: "chat.completion".into(),
        created: builder.created,
        model: info.model.clone(),
        choices,
        usage,
        system_fingerprint: info.fingerprint.clone(),
        id: builder.id,
    })
}

/// Adds a chunk to an answer.
fn add(choice: &mut ChatChoice, chunk: ChatChunkChoice) {
    let ChatChunkChoice { delta, logprobs, finish_reason, .. } = chunk;
    if let Some(text) = delta.content {
        choice.message.content.get_or_insert_default().push_str(&text);
    }
    if let Some(thought) = delta.reasoning_content {
        choice.message.reasoning_content.get_or_insert_default().push_str(&thought);
    }
    for part in delta.tool_calls.into_iter().flatten() {
        let calls = choice.message.tool_calls.get_or_insert_default();
        if let Some(id) = part.id {
            let function = FunctionCall { name: part.function.name.unwrap_or_default(), arguments: String::new() };
            calls.push(ToolCall { id, kind: ToolKind::Function, function });
        }
        if let (Some(call), Some(more)) = (calls.get_mut(part.index), part.function.arguments) {
            call.function.arguments.push_str(&more);
        }
    }
    if let Some(more) = logprobs {
        choice.logprobs.get_or_insert_default().content.extend(more.content);
    }
    choice.finish_reason = finish_reason.unwrap_or(choice.finish_reason);
}

/// The streamed response.
fn stream(builder: ResponseBuilder, include_usage: bool) -> Response {
    // With `include_usage`, chunks before the last have a usage of null.
    let null = include_usage.then_some(None);
    let opening = |i| sse::data(&builder.chunk(vec![ResponseBuilder::opening(i)], null));
    let openings: VecDeque<_> = (0..builder.conversation.info().answers).map(opening).collect();
    let state = Some((builder, include_usage, openings));
    sse::answer(stream::unfold(state, move |state| async move {
        let (mut builder, mut include_usage, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, Some((builder, include_usage, ready))));
            }
            match builder.next().await {
                Some(Ok(choice)) => ready.push_back(sse::data(&builder.chunk(vec![choice], null))),
                Some(Err(fault)) => {
                    ready.push_back(sse::failed(&fault));
                    include_usage = false;
                }
                None if include_usage => {
                    let last = builder.chunk(Vec::new(), Some(Some(builder.usage())));
                    ready.push_back(sse::data(&last));
                    include_usage = false;
                }
                None => return Some((sse::done(), None)),
            }
        }
    }))
}

fn token(logprobs: TokenChoice) -> TokenLogprob {
    let TokenChoice { chosen: TokenText { text: token, bytes }, logprob, top } = logprobs;
    let top = top.into_iter().map(|(TokenText { text: token, bytes }, logprob)| TopLogprob { token, logprob, bytes });
    // Only the first token of an echoed prompt has none, and a chat does not echo its prompt.
    TokenLogprob { token, logprob: logprob.unwrap_or_default(), bytes, top_logprobs: top.collect() }
}
