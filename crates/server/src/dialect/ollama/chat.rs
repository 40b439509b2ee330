//! `POST /api/chat`.

use super::answer::{Piece, Pieces, respond};
use super::params::{self, SharedParams};
use super::session::{LoadedModel, Session, nanos};
use crate::app::App;
use crate::conversation;
use crate::dialect::admin::MayManage;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce_api::ollama::{Answer, ChatAnswer, ChatRequest, Cost};
use sconce_api::time::rfc3339;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(chat))
}

/// Chat, streamed unless `stream` is false.
#[utoipa::path(post, path = "/api/chat", request_body = ChatRequest, responses(
    (status = 200, description = "The answer; a line for each part unless `stream` is false", content(
        (ChatAnswer = "application/x-ndjson"), (ChatAnswer = "application/json")))))]
async fn chat(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<ChatRequest>,
) -> Result<Response, Fault> {
    let session = Session { app: &app, context: &context, may_manage, keep_alive: body.keep_alive };
    let given = body.messages.unwrap_or_default();
    if given.is_empty() {
        let (reason, load) = session.load_or_unload(&body.model).await?;
        let cost = Cost { load_duration: Some(nanos(load)), ..Cost::default() };
        let answer = write(&body.model, Piece { end: Some((reason, cost)), ..Piece::default() });
        return Ok(Json(answer).into_response());
    }
    let messages = params::messages(given)?;
    let LoadedModel { name, lease, load } = session.open(&body.model, RequestKind::Generate).await?;
    let shared = SharedParams {
        options: body.options,
        format: body.format,
        think: params::think_of(lease.served(), body.think, &context),
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
    };
    let mut request = shared.request(&name, &context)?;
    request.messages = messages;
    request.tools = params::tools(body.tools.unwrap_or_default());
    let begun_at = Instant::now();
    let conversation = conversation::begin(&app, &context, "api/chat", request).await?;
    drop(lease);
    let pieces = Pieces::new(conversation, &context, (load, begun_at));
    let model = body.model;
    respond(pieces, body.stream.unwrap_or(true), move |piece| write(&model, piece)).await
}

fn write(model: &str, piece: Piece) -> ChatAnswer {
    let Piece { text, thinking, calls, logprobs, end } = piece;
    let (reason, cost) = end.unzip();
    ChatAnswer {
        model: model.to_owned(),
        created_at: rfc3339(SystemTime::now()),
        message: Answer { role: "assistant".into(), content: text, thinking, tool_calls: calls },
        done: reason.is_some(),
        done_reason: reason.map(str::to_owned),
        logprobs,
        cost: cost.unwrap_or_default(),
    }
}
