//! `POST /completion` and `/completions`.

use super::answers::{Answers, Wanted};
use super::generation::{self, Checked};
use crate::app::App;
use crate::conversation::begin_answers;
use crate::error::{Dialect, Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sconce_api::llama_cpp::{Completion, CompletionRequest, CompletionResponse};
use sconce_engine::Llm;
use serde_json::Value;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Most answers per request with a required form: each holds the state of its grammar.
const MAX_STRUCTURED_ANSWERS: usize = 32;
/// Most probabilities per token of all answers together: a whole response is kept until its end.
const MAX_PROBABILITIES: usize = 2_560;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(completion)).routes(routes!(completions))
}

/// Text completion in llama.cpp's format, complete or streamed.
#[utoipa::path(post, path = "/completion", request_body = CompletionRequest, responses(
    (status = 200, description = "The completions; a stream of parts if `stream` is true", content(
        (CompletionResponse = "application/json"), (Completion = "text/event-stream")))))]
async fn completion(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<CompletionRequest>,
) -> Result<Response, Fault> {
    let prompts = body.prompt.items.clone();
    answer(&app, &context, ("completion", body), move |llm| {
        prompts.iter().map(|parts| generation::encode(llm, parts)).collect()
    })
    .await
}

/// The same as `/completion`.
#[utoipa::path(post, path = "/completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The completions; a stream of parts if `stream` is true", content(
        (CompletionResponse = "application/json"), (Completion = "text/event-stream")))))]
async fn completions(app: State<Arc<App>>, body: JsonBody<CompletionRequest>) -> Result<Response, Fault> {
    completion(app, body).await
}

/// Answers a request whose prompts `encode` makes, on the model's thread.
pub(super) async fn answer(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    (route, body): (&'static str, CompletionRequest),
    encode: impl FnOnce(&Llm) -> Result<Vec<Vec<u32>>, Fault> + Send + 'static,
) -> Result<Response, Fault> {
    let (checked, wanted) = (Checked::new(&body)?, Wanted::from(&body));
    let prompts = body.prompt.items.len();
    app.check_batch(prompts, "prompt")?;
    check_answers(app, &body, &checked)?;
    if body.cache_prompt == Some(false) {
        context.note_ignored("cache_prompt");
    }
    let (is_stream, n) = (body.stream.unwrap_or(false), body.n.unwrap_or(1));
    let is_list = !body.prompt.alone || n > 1;
    let call = app.call(route, context, body.model.as_deref(), RequestKind::Generate)?;
    let (events, prepared) = begin_answers((app, context), call, move |served| {
        let llm = generation::language_model(served)?;
        let prompts = encode(llm)?;
        generation::generation(llm, &body, checked, prompts)
    })
    .await?;
    let answers = Answers::new(events, prepared, wanted);
    if is_stream { Ok(stream(answers)) } else { complete(answers, is_list).await }
}

fn check_answers(app: &App, body: &CompletionRequest, checked: &Checked) -> Result<(), Fault> {
    let (prompts, n) = (body.prompt.items.len(), body.n.unwrap_or(1) as usize);
    let n_probs = body.n_probs.unwrap_or(0) as usize;
    if prompts.saturating_mul(n).saturating_mul(n_probs) > MAX_PROBABILITIES {
        let what = format!(
            "{prompts} prompts with {n} answers each and {n_probs} probabilities per token; the limit of their product is \
             {MAX_PROBABILITIES}"
        );
        return Err(Fault::new(FaultKind::TooMany, what).at("n_probs"));
    }
    let limit = app.config.max_client_batch;
    let limit = if checked.has_format() { limit.min(MAX_STRUCTURED_ANSWERS) } else { limit };
    if prompts.saturating_mul(n) <= limit {
        return Ok(());
    }
    let what = format!("{prompts} prompts with {n} answers each; the limit is {limit} answers");
    Err(Fault::new(FaultKind::TooMany, what).at("n"))
}

/// The complete response.
async fn complete(mut answers: Answers, is_list: bool) -> Result<Response, Fault> {
    let mut all: Vec<(usize, Value)> = Vec::new();
    while let Some(completion) = answers.next().await {
        let completion = completion?;
        if completion.stop == Some(true) {
            all.push((completion.index.unwrap_or_default(), answers.selected(&completion)));
        }
    }
    all.sort_by_key(|(index, _)| *index);
    let mut all: Vec<Value> = all.into_iter().map(|(_, completion)| completion).collect();
    Ok(match is_list {
        true => Json(all).into_response(),
        false => Json(all.pop().unwrap_or_default()).into_response(),
    })
}

/// The streamed response. Its last event has `stop`; no `[DONE]` follows.
fn stream(answers: Answers) -> Response {
    sse::answer(stream::unfold(Some(answers), |answers| async move {
        let mut answers = answers?;
        match answers.next().await? {
            Ok(completion) => Some((sse::data(&answers.selected(&completion)), Some(answers))),
            Err(fault) => Some((sse::data(&fault.body(Dialect::LlamaCpp)), None)),
        }
    }))
}
