//! `POST /v1/chat/completions`.

use super::conversation::{self, Calls, Choice};
use super::flow::{self, About, Flow, Likely, News, Word, Work};
use super::tools::{Piece, Reader, Style};
use super::wish::{Knobs, Wish};
use super::{id, now};
use crate::app::App;
use crate::asked::Asked;
use crate::error::{Fault, FaultKind};
use crate::served::Want;
use crate::sse;
use crate::trail::Trail;
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
use sconce_engine::TaskModel;
use sconce_engine::{Finish, Loaded, Request, Start};
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(chat_completions))
}

/// Answers a conversation, at once or piece by piece.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest, responses(
    (status = 200, description = "The answers; a stream of chunks if `stream` is true", content(
        (ChatCompletion = "application/json"), (ChatChunk = "text/event-stream")))))]
async fn chat_completions(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<ChatRequest>,
) -> Result<Response, Fault> {
    check(&body, &trail)?;
    let wish = Knobs::from(&body).wish()?;
    wish.check_answers(1, app.config.max_client_batch)?;
    let call = app.call("v1/chat/completions", &trail, body.model.as_deref(), Want::Generate)?;
    let asked = wish.clone();
    let (flow, calls) = flow::begin((&app, &trail), call, move |served| {
        let TaskModel::Generate(llm) = &served.model else {
            let what = format!("the model `{}` does not hold conversations; ask it at /v1/completions", served.id);
            return Err(Fault::new(FaultKind::Unfit, what).at("model"));
        };
        let params = Knobs::from(&body).params(llm.params(), llm.plan().vocabulary)?;
        let prompt = conversation::prompt(llm, &body, asked.form)?;
        let request = Request {
            start: Start::Rendered(prompt.text),
            params: Some(params),
            max_tokens: asked.max_tokens,
            stop: asked.stop,
            echo: false,
            ignore_end: body.ignore_eos.unwrap_or(false),
            format: prompt.format,
        };
        Ok((Work::Write { requests: vec![request], marks: prompt.marks }, prompt.calls))
    })
    .await?;
    let script = Script::new(flow.about(), calls.as_ref(), &wish);
    if wish.stream {
        return Ok(stream(flow, script));
    }
    whole(flow, script).await.map(|completion| Json(completion).into_response())
}

/// What is refused, and what is said to have no effect.
fn check(request: &ChatRequest, trail: &Trail) -> Result<(), Fault> {
    for (field, is_there, instead) in [
        ("functions", request.functions.is_some(), "`tools`"),
        ("function_call", request.function_call.is_some(), "`tool_choice`"),
    ] {
        if is_there {
            return Err(Fault::invalid(format!("`{field}` is no longer taken; use {instead}")).at(field));
        }
    }
    if request.modalities.iter().flatten().any(|m| m != "text") {
        return Err(Fault::invalid("answers are text: `modalities` can be [\"text\"] alone").at("modalities"));
    }
    if request.top_logprobs.is_some_and(|n| n > 0) && !request.logprobs.unwrap_or(false) {
        return Err(Fault::invalid("`top_logprobs` needs `logprobs` to be true").at("top_logprobs"));
    }
    if let Choice::Auto(tools) = Choice::of(request)? {
        // Where a call is not demanded, nothing holds the model to the schema.
        for (i, _) in tools.iter().enumerate().filter(|(_, tool)| tool.function.strict == Some(true)) {
            trail.ignored(&format!("tools[{i}].function.strict"));
        }
    }
    if request.stream_options.as_ref().and_then(|o| o.include_obfuscation) == Some(true) {
        trail.ignored("stream_options.include_obfuscation");
    }
    Ok(())
}

/// Words what happens to the answers.
struct Script {
    id: String,
    created: u64,
    about: About,
    voices: Vec<Voice>,
    /// Tokens of all answers.
    written: usize,
    include_usage: bool,
}

/// One answer in the making.
struct Voice {
    reader: Option<Reader>,
    /// Mistral's templates take ids of nine letters and digits, and no others.
    short_ids: bool,
    /// How likely tokens were whose text is still held back.
    likely: Vec<TokenLogprob>,
}

impl Voice {
    fn new(calls: Option<&Calls>) -> Voice {
        let reader = calls.map(|calls| Reader::new(calls.style, calls.names.clone(), calls.parallel));
        Voice { reader, short_ids: calls.is_some_and(|calls| calls.style == Style::Mistral), likely: Vec::new() }
    }

    fn call_id(&self) -> String {
        match self.short_ids {
            true => id("").chars().take(9).collect(),
            false => id("call_"),
        }
    }

    /// What more text is, worded.
    fn deltas(&mut self, pieces: Vec<Piece>) -> Vec<ChatDelta> {
        let call = |index, id: Option<String>, function| {
            let kind = id.is_some().then_some(ToolKind::Function);
            ChatDelta { tool_calls: Some(vec![ToolCallDelta { index, id, kind, function }]), ..ChatDelta::default() }
        };
        let word = |piece| match piece {
            Piece::Text(text) => ChatDelta { content: Some(text), ..ChatDelta::default() },
            Piece::Call { index, name } => {
                let function = FunctionDelta { name: Some(name), arguments: Some(String::new()) };
                call(index, Some(self.call_id()), function)
            }
            Piece::Arguments { index, text } => call(index, None, FunctionDelta { name: None, arguments: Some(text) }),
        };
        pieces.into_iter().map(word).collect()
    }

    fn grow(&mut self, text: String) -> Vec<ChatDelta> {
        let pieces = match &mut self.reader {
            Some(reader) => reader.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text)],
        };
        self.deltas(pieces)
    }

    fn end(&mut self, finish: &Finish) -> (Vec<ChatDelta>, FinishReason) {
        let pieces = self.reader.as_mut().map(Reader::finish).unwrap_or_default();
        let called = self.reader.as_ref().is_some_and(|reader| reader.calls() > 0);
        let reason = match finish {
            Finish::Length => FinishReason::Length,
            Finish::End | Finish::Stop(_) if called => FinishReason::ToolCalls,
            Finish::End | Finish::Stop(_) => FinishReason::Stop,
        };
        (self.deltas(pieces), reason)
    }
}

impl Script {
    fn new(about: &About, calls: Option<&Calls>, wish: &Wish) -> Script {
        Script {
            id: id("chatcmpl-"),
            created: now(),
            about: about.clone(),
            voices: (0..about.answers).map(|_| Voice::new(calls)).collect(),
            written: 0,
            include_usage: wish.include_usage,
        }
    }

    /// What `news` adds to which answer: what is new, how likely its tokens were, and why it ended.
    fn choices(&mut self, news: News) -> Result<Vec<ChatChunkChoice>, Fault> {
        let (index, deltas, reason) = match news {
            News::Text { answer, text, tokens, .. } => {
                self.written += tokens.len();
                let voice = &mut self.voices[answer];
                voice.likely.extend(tokens.into_iter().flatten().map(token));
                (answer, voice.grow(text), None)
            }
            News::End { answer, finish } => {
                let (deltas, reason) = self.voices[answer].end(&finish);
                (answer, deltas, Some(reason))
            }
            News::Failed(fault) => return Err(fault),
        };
        let choice = |delta, finish_reason| ChatChunkChoice { index, delta, logprobs: None, finish_reason };
        let mut choices: Vec<ChatChunkChoice> = deltas.into_iter().map(|delta| choice(delta, None)).collect();
        choices.extend(reason.map(|reason| choice(ChatDelta::default(), Some(reason))));
        if let Some(first) = choices.first_mut() {
            let content = std::mem::take(&mut self.voices[index].likely);
            first.logprobs = (!content.is_empty()).then_some(ChatLogprobs { content, refusal: None });
        }
        Ok(choices)
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.about.model.clone(),
            choices,
            system_fingerprint: self.about.fingerprint.clone(),
            usage: self.include_usage.then_some(None),
        }
    }

    /// The first piece of an answer.
    fn opening(&self, index: usize) -> ChatChunk {
        let delta = ChatDelta { role: Some("assistant".into()), content: Some(String::new()), tool_calls: None };
        self.chunk(vec![ChatChunkChoice { index, delta, ..ChatChunkChoice::default() }])
    }

    fn usage(&self) -> Usage {
        Usage::new(self.about.prompt_tokens, self.about.cached_tokens(), self.written)
    }
}

/// The answers in one piece.
async fn whole(mut flow: Flow, mut script: Script) -> Result<ChatCompletion, Fault> {
    let open = |index| ChatChoice {
        index,
        message: AssistantMessage { role: "assistant".into(), ..AssistantMessage::default() },
        logprobs: None,
        finish_reason: FinishReason::Stop,
    };
    let mut choices: Vec<ChatChoice> = (0..script.about.answers).map(open).collect();
    while let Some(news) = flow.next().await {
        for chunk in script.choices(news)? {
            add(&mut choices[chunk.index], chunk);
        }
    }
    for choice in &mut choices {
        // A message has a text, be it empty, or calls.
        if choice.message.tool_calls.is_none() {
            choice.message.content.get_or_insert_default();
        }
    }
    let usage = script.usage();
    Ok(ChatCompletion {
        id: script.id,
        object: "chat.completion".into(),
        created: script.created,
        model: script.about.model,
        choices,
        usage,
        system_fingerprint: script.about.fingerprint,
    })
}

/// Adds what is new to an answer.
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

/// The answers piece by piece.
fn stream(flow: Flow, script: Script) -> Response {
    let openings: VecDeque<_> = (0..script.about.answers).map(|i| sse::data(&script.opening(i))).collect();
    let state = Some((flow, script, openings));
    sse::answer(stream::unfold(state, |state| async move {
        let (mut flow, mut script, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, Some((flow, script, ready))));
            }
            match flow.next().await.map(|news| script.choices(news)) {
                Some(Ok(choices)) => {
                    ready.extend(choices.into_iter().map(|choice| sse::data(&script.chunk(vec![choice]))));
                }
                Some(Err(fault)) => {
                    ready.push_back(sse::failed(&fault));
                    script.include_usage = false;
                }
                None if script.include_usage => {
                    let last = ChatChunk { usage: Some(Some(script.usage())), ..script.chunk(Vec::new()) };
                    ready.push_back(sse::data(&last));
                    script.include_usage = false;
                }
                None => return Some((sse::done(), None)),
            }
        }
    }))
}

fn token(likely: Likely) -> TokenLogprob {
    let Likely { chosen: Word { text: token, bytes }, logprob, top } = likely;
    let top = top.into_iter().map(|(Word { text: token, bytes }, logprob)| TopLogprob { token, logprob, bytes });
    // Only the first of a prompt has none, and a chat does not echo its prompt.
    TokenLogprob { token, logprob: logprob.unwrap_or_default(), bytes, top_logprobs: top.collect() }
}
