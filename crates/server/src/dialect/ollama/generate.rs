//! `POST /api/generate`.

use super::answer::{Piece, Pieces, respond};
use super::params::{self, SharedParams};
use super::session::{LoadedModel, Session, nanos};
use crate::app::App;
use crate::conversation::{self, RawPrompt};
use crate::dialect::admin::MayManage;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::served_model::{RequestKind, ServedModel};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce_api::ollama::{Cost, GenerateAnswer, GenerateRequest, Message};
use sconce_api::time::rfc3339;
use sconce_engine::TaskModel;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(generate))
}

/// Completion of a prompt, streamed unless `stream` is false.
#[utoipa::path(post, path = "/api/generate", request_body = GenerateRequest, responses(
    (status = 200, description = "The answer; a line for each part unless `stream` is false", content(
        (GenerateAnswer = "application/x-ndjson"), (GenerateAnswer = "application/json")))))]
async fn generate(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<GenerateRequest>,
) -> Result<Response, Fault> {
    check(&body)?;
    let session = Session { app: &app, context: &context, may_manage, keep_alive: body.keep_alive };
    let prompt = Prompt {
        text: body.prompt.unwrap_or_default(),
        suffix: body.suffix.filter(|suffix| !suffix.is_empty()),
        system: body.system.filter(|system| !system.is_empty()),
        raw: body.raw.unwrap_or(false),
    };
    if prompt.text.is_empty() && prompt.suffix.is_none() {
        let (reason, load) = session.load_or_unload(&body.model).await?;
        let cost = Cost { load_duration: Some(nanos(load)), ..Cost::default() };
        let answer = write(&body.model, Piece { end: Some((reason, cost)), ..Piece::default() });
        return Ok(Json(answer).into_response());
    }
    let LoadedModel { name, lease, load } = session.open(&body.model, RequestKind::Generate).await?;
    let shared = SharedParams {
        options: body.options,
        format: body.format,
        think: params::think_of(lease.served(), body.think, &context),
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
    };
    let mut request = shared.request(&name, &context)?;
    let begun_at = Instant::now();
    let conversation = match prompt.for_model(lease.served())? {
        ModelPrompt::Raw(raw) => {
            // Without a template nothing shows the model whether to think.
            if body.think.is_some() {
                context.note_ignored("think");
            }
            conversation::begin_raw(&app, &context, "api/generate", (raw, request)).await?
        }
        ModelPrompt::Messages(messages) => {
            request.messages = params::messages(messages)?;
            conversation::begin(&app, &context, "api/generate", request).await?
        }
    };
    drop(lease);
    let pieces = Pieces::new(conversation, &context, (load, begun_at));
    let model = body.model;
    respond(pieces, body.stream.unwrap_or(true), move |piece| write(&model, piece)).await
}

/// Refuses fields that this server does not support.
fn check(body: &GenerateRequest) -> Result<(), Fault> {
    params::refuse_images(body.images.as_ref(), "images")?;
    if body.template.as_ref().is_some_and(|template| !template.is_empty()) {
        let what = "`template` is not supported: the chat template is that of the model's files; send a prompt that is \
                    complete with `raw`";
        return Err(Fault::invalid(what).at("template"));
    }
    if body.context.as_ref().is_some_and(|context| !context.is_empty()) {
        let what = "`context` is not supported; send the conversation to /api/chat, which reads a repeated beginning only once";
        return Err(Fault::invalid(what).at("context"));
    }
    Ok(())
}

/// The prompt of a request.
struct Prompt {
    text: String,
    suffix: Option<String>,
    system: Option<String>,
    raw: bool,
}

/// The prompt as the model reads it.
enum ModelPrompt {
    /// Without the chat template.
    Raw(RawPrompt),
    /// As messages.
    Messages(Vec<Message>),
}

impl Prompt {
    /// A model without a chat template continues the text.
    fn for_model(self, served: &ServedModel) -> Result<ModelPrompt, Fault> {
        let without = |what: &str| {
            Err(Fault::invalid(format!("`system` has no effect {what}; put the text into `prompt`")).at("system"))
        };
        if let Some(suffix) = self.suffix {
            return match self.system {
                Some(_) => without("with `suffix`"),
                None => Ok(ModelPrompt::Raw(RawPrompt::Infill { prefix: self.text, suffix })),
            };
        }
        let has_template = matches!(&served.model, TaskModel::Generate(llm) if llm.template(false).is_some());
        match self.system {
            Some(_) if self.raw => without("with `raw`"),
            Some(_) if !has_template => without(&format!("on `{}`, which has no chat template", served.id)),
            None if self.raw || !has_template => Ok(ModelPrompt::Raw(RawPrompt::Text(self.text))),
            system => {
                let message =
                    |role: &str, text| Message { role: role.into(), content: Some(text), ..Message::default() };
                let system = system.map(|text| message("system", text));
                Ok(ModelPrompt::Messages(system.into_iter().chain([message("user", self.text)]).collect()))
            }
        }
    }
}

fn write(model: &str, piece: Piece) -> GenerateAnswer {
    let Piece { text, thinking, logprobs, end, .. } = piece;
    let (reason, cost) = end.unzip();
    GenerateAnswer {
        model: model.to_owned(),
        created_at: rfc3339(SystemTime::now()),
        response: text,
        thinking,
        done: reason.is_some(),
        done_reason: reason.map(str::to_owned),
        logprobs,
        cost: cost.unwrap_or_default(),
    }
}
