//! `POST /v1/completions`.

use super::{id, now};
use crate::app::App;
use crate::conversation::{
    AnswerEvent, AnswerInfo, AnswerStream, Generation, OutputParams, Seq2SeqRequest, SharedFields, TokenChoice,
    begin_answers,
};
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::served_model::{RequestKind, ServedModel};
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sconce_api::openai::common::{FinishReason, Usage};
use sconce_api::openai::completions::{Completion, CompletionChoice, CompletionLogprobs, CompletionRequest, Prompt};
use sconce_engine::TaskModel;
use sconce_engine::{Finish, Format, Loaded, Request, Start};
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Default of `max_tokens`, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(completions))
}

/// Text completion, complete or streamed. Sequence-to-sequence models (T5) take the prompt as their
/// input.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The completions; a stream of chunks if `stream` is true", content(
        (Completion = "application/json"), (Completion = "text/event-stream")))))]
async fn completions(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<CompletionRequest>,
) -> Result<Response, Fault> {
    check(&body)?;
    let starts = starts(&body.prompt);
    app.check_batch(starts.len(), "prompt")?;
    let output = SharedFields::from(&body).output_params()?;
    output.check_answers(starts.len(), app.config.max_client_batch)?;
    if body.stream_options.as_ref().and_then(|o| o.include_obfuscation) == Some(true) {
        context.note_ignored("stream_options.include_obfuscation");
    }
    let call = app.call("v1/completions", &context, body.model.as_deref(), RequestKind::Generate)?;
    let requested = output.clone();
    let (answers, ()) = begin_answers((&app, &context), call, move |served| {
        generation(served, &body, starts, requested).map(|generation| (generation, ()))
    })
    .await?;
    let builder = ResponseBuilder::new(answers.info(), &output);
    if output.stream {
        return Ok(stream(answers, builder));
    }
    complete(answers, builder).await.map(|completion| Json(completion).into_response())
}

fn check(request: &CompletionRequest) -> Result<(), Fault> {
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(
            Fault::invalid("no model on this server supports fill-in-the-middle; leave out `suffix`").at("suffix")
        );
    }
    let n = request.n.unwrap_or(1);
    if request.best_of.is_some_and(|best| best != n) {
        let what = "`best_of` must equal `n`: every generated answer is returned";
        return Err(Fault::invalid(what).at("best_of"));
    }
    Ok(())
}

/// The engine's start of each prompt.
fn starts(prompt: &Prompt) -> Vec<Start> {
    match prompt {
        Prompt::Text(text) => vec![Start::Text(text.clone())],
        Prompt::Texts(texts) => texts.iter().map(|text| Start::Text(text.clone())).collect(),
        Prompt::Tokens(ids) => vec![Start::Tokens(ids.clone())],
        Prompt::Several(all) => all.iter().map(|ids| Start::Tokens(ids.clone())).collect(),
    }
}

fn generation(
    served: &ServedModel,
    body: &CompletionRequest,
    starts: Vec<Start>,
    output: OutputParams,
) -> Result<Generation, Fault> {
    let (fields, echo) = (SharedFields::from(body), body.echo.unwrap_or(false));
    match &served.model {
        TaskModel::Generate(llm) => {
            let params = fields.params(llm.params(), llm.plan().vocabulary)?;
            let format = output.format.map(Format::from);
            let request = |start| Request {
                start,
                params: Some(params.clone()),
                max_tokens: Some(output.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
                stop: output.stop.clone(),
                echo,
                ignore_end: body.ignore_eos.unwrap_or(false),
                format: format.clone(),
                thoughts: None,
            };
            Ok(Generation::Decode { requests: starts.into_iter().map(request).collect(), marks: Vec::new() })
        }
        TaskModel::Seq2Seq(_) if echo => {
            Err(Fault::invalid("sequence-to-sequence models (T5) do not support `echo`").at("echo"))
        }
        TaskModel::Seq2Seq(model) => Seq2SeqRequest::new(model, starts, &fields, &output).map(Generation::Seq2Seq),
        _ => Err(served.unsupported(RequestKind::Generate)),
    }
}

/// Builds responses and chunks from events.
struct ResponseBuilder {
    id: String,
    created: u64,
    info: AnswerInfo,
    /// Characters of each answer so far, for `text_offset`.
    lengths: Vec<usize>,
    completion_tokens: usize,
    include_usage: bool,
}

impl ResponseBuilder {
    fn new(info: &AnswerInfo, output: &OutputParams) -> ResponseBuilder {
        ResponseBuilder {
            id: id("cmpl-"),
            created: now(),
            info: info.clone(),
            lengths: vec![0; info.answers],
            completion_tokens: 0,
            include_usage: output.include_usage,
        }
    }

    /// The choice that an event adds to.
    fn choice(&mut self, event: AnswerEvent) -> Result<CompletionChoice, Fault> {
        match event {
            AnswerEvent::Text { answer: index, prompt, text, tokens } => {
                self.completion_tokens += if prompt { 0 } else { tokens.len() };
                let choices: Vec<TokenChoice> = tokens.into_iter().flatten().collect();
                let logprobs = (!choices.is_empty()).then(|| logprobs(choices, self.lengths[index]));
                self.lengths[index] += text.chars().count();
                Ok(CompletionChoice { text, index, logprobs, finish_reason: None })
            }
            AnswerEvent::End { answer: index, finish } => {
                let reason = match finish {
                    Finish::Length => FinishReason::Length,
                    Finish::End | Finish::Stop(_) => FinishReason::Stop,
                };
                Ok(CompletionChoice { index, finish_reason: Some(reason), ..CompletionChoice::default() })
            }
            AnswerEvent::Failed(fault) => Err(fault),
        }
    }

    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: self.created,
            model: self.info.model.clone(),
            choices,
            system_fingerprint: self.info.fingerprint.clone(),
            usage,
        }
    }

    fn usage(&self) -> Usage {
        Usage::new(self.info.prompt_tokens, self.info.cached_tokens(), self.completion_tokens)
    }
}

/// Logprobs of tokens; `at` is the character offset of the first.
fn logprobs(choices: Vec<TokenChoice>, mut at: usize) -> CompletionLogprobs {
    let mut all = CompletionLogprobs::default();
    for TokenChoice { chosen, logprob, top } in choices {
        all.text_offset.push(at);
        at += chosen.text.chars().count();
        all.tokens.push(chosen.text);
        all.token_logprobs.push(logprob);
        all.top_logprobs.push(logprob.map(|_| top.into_iter().map(|(word, logprob)| (word.text, logprob)).collect()));
    }
    all
}

/// The complete response.
async fn complete(mut answers: AnswerStream, mut builder: ResponseBuilder) -> Result<Completion, Fault> {
    let open = |index| CompletionChoice { index, ..CompletionChoice::default() };
    let mut choices: Vec<CompletionChoice> = (0..builder.info.answers).map(open).collect();
    while let Some(event) = answers.next().await {
        let CompletionChoice { text, index, logprobs, finish_reason } = builder.choice(event)?;
        let choice = &mut choices[index];
        choice.text.push_str(&text);
        choice.finish_reason = choice.finish_reason.or(finish_reason);
        if let Some(more) = logprobs {
            let all = choice.logprobs.get_or_insert_default();
            all.tokens.extend(more.tokens);
            all.token_logprobs.extend(more.token_logprobs);
            all.top_logprobs.extend(more.top_logprobs);
            all.text_offset.extend(more.text_offset);
        }
    }
    Ok(builder.completion(choices, Some(Some(builder.usage()))))
}

/// The streamed response.
fn stream(answers: AnswerStream, builder: ResponseBuilder) -> Response {
    let state = Some((answers, builder, VecDeque::new()));
    sse::answer(stream::unfold(state, |state| async move {
        let (mut answers, mut builder, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, Some((answers, builder, ready))));
            }
            match answers.next().await.map(|event| builder.choice(event)) {
                Some(Ok(choice)) => {
                    let usage = builder.include_usage.then_some(None);
                    ready.push_back(sse::data(&builder.completion(vec![choice], usage)));
                }
                Some(Err(fault)) => {
                    ready.push_back(sse::failed(&fault));
                    builder.include_usage = false;
                }
                None if builder.include_usage => {
                    let usage = Some(Some(builder.usage()));
                    ready.push_back(sse::data(&builder.completion(Vec::new(), usage)));
                    builder.include_usage = false;
                }
                None => return Some((sse::done(), None)),
            }
        }
    }))
}
