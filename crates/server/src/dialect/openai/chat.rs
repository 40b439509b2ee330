//! `POST /v1/chat/completions`.

use super::answer_stream::{self, AnswerEvent, AnswerInfo, AnswerStream, Generation, TokenChoice, TokenText};
use super::conversation::{self, Calls, Choice};
use super::params::{OutputParams, SharedFields};
use super::{id, now};
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
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
use sconce_engine::{AnswerPart, Finish, Loaded, Request, Start, TaskModel, ToolCallParser, ToolSyntax};
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
    check(&body, &context)?;
    let output = SharedFields::from(&body).output_params()?;
    output.check_answers(1, app.config.max_client_batch)?;
    let call = app.call("v1/chat/completions", &context, body.model.as_deref(), RequestKind::Generate)?;
    let requested = output.clone();
    let (answers, calls) = answer_stream::begin((&app, &context), call, move |served| {
        let TaskModel::Generate(llm) = &served.model else {
            let what = format!("the model `{}` does not support chat; use /v1/completions", served.id);
            return Err(Fault::new(FaultKind::UnsupportedTask, what).at("model"));
        };
        let params = SharedFields::from(&body).params(llm.params(), llm.plan().vocabulary)?;
        let prompt = conversation::prompt(llm, &body, requested.format)?;
        let request = Request {
            start: Start::Rendered(prompt.text),
            params: Some(params),
            max_tokens: requested.max_tokens,
            stop: requested.stop,
            echo: false,
            ignore_end: body.ignore_eos.unwrap_or(false),
            format: prompt.format,
        };
        Ok((Generation::Decode { requests: vec![request], marks: prompt.marks }, prompt.calls))
    })
    .await?;
    let builder = ResponseBuilder::new(answers.info(), calls.as_ref(), &output);
    if output.stream {
        return Ok(stream(answers, builder));
    }
    complete(answers, builder).await.map(|completion| Json(completion).into_response())
}

/// Refuses unsupported fields, and records those without effect.
fn check(request: &ChatRequest, context: &HttpContext) -> Result<(), Fault> {
    for (field, is_set, instead) in [
        ("functions", request.functions.is_some(), "`tools`"),
        ("function_call", request.function_call.is_some(), "`tool_choice`"),
    ] {
        if is_set {
            return Err(Fault::invalid(format!("`{field}` is not supported; use {instead}")).at(field));
        }
    }
    if request.modalities.iter().flatten().any(|m| m != "text") {
        return Err(Fault::invalid("answers are text only: `modalities` must be [\"text\"]").at("modalities"));
    }
    if request.top_logprobs.is_some_and(|n| n > 0) && !request.logprobs.unwrap_or(false) {
        return Err(Fault::invalid("`top_logprobs` needs `logprobs` to be true").at("top_logprobs"));
    }
    if let Choice::Auto(tools) = Choice::of(request)? {
        // Without `tool_choice: required` no grammar enforces the schema.
        for (i, _) in tools.iter().enumerate().filter(|(_, tool)| tool.function.strict == Some(true)) {
            context.note_ignored(&format!("tools[{i}].function.strict"));
        }
    }
    if request.stream_options.as_ref().and_then(|o| o.include_obfuscation) == Some(true) {
        context.note_ignored("stream_options.include_obfuscation");
    }
    Ok(())
}

/// Builds responses and chunks from events.
struct ResponseBuilder {
    id: String,
    created: u64,
    info: AnswerInfo,
    states: Vec<AnswerState>,
    /// Generated tokens of all answers.
    completion_tokens: usize,
    include_usage: bool,
}

/// State of one answer.
struct AnswerState {
    parser: Option<ToolCallParser>,
    /// Mistral's templates only accept ids of nine letters and digits.
    short_ids: bool,
    /// Logprobs of tokens whose text the parser still holds back.
    logprobs: Vec<TokenLogprob>,
}

impl AnswerState {
    fn new(calls: Option<&Calls>) -> AnswerState {
        let parser = calls.map(|calls| ToolCallParser::new(calls.syntax, calls.names.clone(), calls.parallel));
        AnswerState {
            parser,
            short_ids: calls.is_some_and(|calls| calls.syntax == ToolSyntax::Mistral),
            logprobs: Vec::new(),
        }
    }

    fn call_id(&self) -> String {
        match self.short_ids {
            true => id("").chars().take(9).collect(),
            false => id("call_"),
        }
    }

    /// The deltas of parsed parts.
    fn deltas(&mut self, parts: Vec<AnswerPart>) -> Vec<ChatDelta> {
        let call = |index, id: Option<String>, function| {
            let kind = id.is_some().then_some(ToolKind::Function);
            ChatDelta { tool_calls: Some(vec![ToolCallDelta { index, id, kind, function }]), ..ChatDelta::default() }
        };
        let delta = |part| match part {
            AnswerPart::Text(text) => ChatDelta { content: Some(text), ..ChatDelta::default() },
            AnswerPart::Call { index, name } => {
                let function = FunctionDelta { name: Some(name), arguments: Some(String::new()) };
                call(index, Some(self.call_id()), function)
            }
            AnswerPart::Arguments { index, text } => {
                call(index, None, FunctionDelta { name: None, arguments: Some(text) })
            }
        };
        parts.into_iter().map(delta).collect()
    }

    fn push_text(&mut self, text: String) -> Vec<ChatDelta> {
        let parts = match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Text(text)],
        };
        self.deltas(parts)
    }

    fn end(&mut self, finish: &Finish) -> (Vec<ChatDelta>, FinishReason) {
        let parts = self.parser.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        let has_calls = self.parser.as_ref().is_some_and(|parser| parser.calls() > 0);
        let reason = match finish {
            Finish::Length => FinishReason::Length,
            Finish::End | Finish::Stop(_) if has_calls => FinishReason::ToolCalls,
            Finish::End | Finish::Stop(_) => FinishReason::Stop,
        };
        (self.deltas(parts), reason)
    }
}

impl ResponseBuilder {
    fn new(info: &AnswerInfo, calls: Option<&Calls>, output: &OutputParams) -> ResponseBuilder {
        ResponseBuilder {
            id: id("chatcmpl-"),
            created: now(),
            info: info.clone(),
            states: (0..info.answers).map(|_| AnswerState::new(calls)).collect(),
            completion_tokens: 0,
            include_usage: output.include_usage,
        }
    }

    /// The choices of an event: deltas, logprobs and finish reason.
    fn choices(&mut self, event: AnswerEvent) -> Result<Vec<ChatChunkChoice>, Fault> {
        let (index, deltas, reason) = match event {
            AnswerEvent::Text { answer, text, tokens, .. } => {
                self.completion_tokens += tokens.len();
                let state = &mut self.states[answer];
                state.logprobs.extend(tokens.into_iter().flatten().map(token));
                (answer, state.push_text(text), None)
            }
            AnswerEvent::End { answer, finish } => {
                let (deltas, reason) = self.states[answer].end(&finish);
                (answer, deltas, Some(reason))
            }
            AnswerEvent::Failed(fault) => return Err(fault),
        };
        let choice = |delta, finish_reason| ChatChunkChoice { index, delta, logprobs: None, finish_reason };
        let mut choices: Vec<ChatChunkChoice> = deltas.into_iter().map(|delta| choice(delta, None)).collect();
        choices.extend(reason.map(|reason| choice(ChatDelta::default(), Some(reason))));
        if let Some(first) = choices.first_mut() {
            let content = std::mem::take(&mut self.states[index].logprobs);
            first.logprobs = (!content.is_empty()).then_some(ChatLogprobs { content, refusal: None });
        }
        Ok(choices)
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.info.model.clone(),
            choices,
            system_fingerprint: self.info.fingerprint.clone(),
            usage: self.include_usage.then_some(None),
        }
    }

    /// The first chunk of an answer.
    fn opening(&self, index: usize) -> ChatChunk {
        let delta = ChatDelta { role: Some("assistant".into()), content: Some(String::new()), tool_calls: None };
        self.chunk(vec![ChatChunkChoice { index, delta, ..ChatChunkChoice::default() }])
    }

    fn usage(&self) -> Usage {
        Usage::new(self.info.prompt_tokens, self.info.cached_tokens(), self.completion_tokens)
    }
}

/// The complete response.
async fn complete(mut answers: AnswerStream, mut builder: ResponseBuilder) -> Result<ChatCompletion, Fault> {
    let open = |index| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant".into(), ..AssistantMessage::default() },
        logprobs: None,
        finish_reason: FinishReason::Stop,
    };
    let mut choices: Vec<ChatChoice> = (0..builder.info.answers).map(open).collect();
    while let Some(event) = answers.next().await {
        for chunk in builder.choices(event)? {
            add(&mut choices[chunk.index], chunk);
        }
    }
    for choice in &mut choices {
        // A message has a text, possibly empty, or tool calls.
        if choice.message.tool_calls.is_none() {
            choice.message.content.get_or_insert_default();
        }
    }
    let usage = builder.usage();
    Ok(ChatCompletion {
        id: builder.id,
        object: "chat.completion".into(),
        created: builder.created,
        model: builder.info.model,
        choices,
        usage,
        system_fingerprint: builder.info.fingerprint,
    })
}

/// Adds a chunk to an answer.
fn add(choice: &mut ChatChoice, chunk: ChatChunkChoice) {
    let ChatChunkChoice { delta, logprobs, finish_reason, .. } = chunk;
    if let Some(text) = delta.content {
        choice.message.content.get_or_insert_default().push_str(&text);
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
fn stream(answers: AnswerStream, builder: ResponseBuilder) -> Response {
    let openings: VecDeque<_> = (0..builder.info.answers).map(|i| sse::data(&builder.opening(i))).collect();
    let state = Some((answers, builder, openings));
    sse::answer(stream::unfold(state, |state| async move {
        let (mut answers, mut builder, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, Some((answers, builder, ready))));
            }
            match answers.next().await.map(|event| builder.choices(event)) {
                Some(Ok(choices)) => {
                    ready.extend(choices.into_iter().map(|choice| sse::data(&builder.chunk(vec![choice]))));
                }
                Some(Err(fault)) => {
                    ready.push_back(sse::failed(&fault));
                    builder.include_usage = false;
                }
                None if builder.include_usage => {
                    let last = ChatChunk { usage: Some(Some(builder.usage())), ..builder.chunk(Vec::new()) };
                    ready.push_back(sse::data(&last));
                    builder.include_usage = false;
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
