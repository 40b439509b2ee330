//! `POST /api/embed` and `POST /api/embeddings`.

use super::session::{LoadedModel, Session, nanos};
use crate::answer::{Answer, Compute};
use crate::app::App;
use crate::call::Usage;
use crate::dialect::admin::MayManage;
use crate::embedding::{self, EmbedOutput, EmbedParams};
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::Extension;
use axum::extract::State;
use sconce_api::input::Item;
use sconce_api::ollama::{EmbedAnswer, EmbedInput, EmbedRequest, EmbeddingsAnswer, EmbeddingsRequest, Options};
use sconce_engine::{TaskModel, Truncate};
use std::sync::Arc;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(embed)).routes(routes!(embeddings))
}

/// Embeds texts: one L2-normalized embedding per text.
#[utoipa::path(post, path = "/api/embed", request_body = EmbedRequest,
    responses((status = 200, description = "One embedding per text", body = EmbedAnswer)))]
async fn embed(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<EmbedRequest>,
) -> Result<Answer<EmbedAnswer>, Fault> {
    let session = Session { app: &app, context: &context, may_manage, keep_alive: body.keep_alive };
    let request = Request {
        texts: body.input.map_or_else(Vec::new, EmbedInput::into_texts),
        truncate: body.truncate.unwrap_or(true),
        // As at Ollama, 0 keeps all dimensions.
        dimensions: body.dimensions.filter(|n| *n > 0),
        options: body.options.unwrap_or_default(),
        normalize: true,
        param: "input",
    };
    let (answer, load) = request.run(&session, &body.model, "api/embed").await?;
    let started_at = context.started_at;
    Ok(answer.map(|output| EmbedAnswer {
        model: body.model,
        embeddings: output.rows,
        total_duration: nanos(started_at.elapsed()),
        load_duration: nanos(load),
        prompt_eval_count: output.usage.tokens,
    }))
}

/// The embedding of one text, not L2-normalized. `/api/embed` replaces it.
#[utoipa::path(post, path = "/api/embeddings", request_body = EmbeddingsRequest,
    responses((status = 200, description = "The embedding", body = EmbeddingsAnswer)))]
async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<EmbeddingsRequest>,
) -> Result<Answer<EmbeddingsAnswer>, Fault> {
    let session = Session { app: &app, context: &context, may_manage, keep_alive: body.keep_alive };
    let request = Request {
        texts: body.prompt.filter(|text| !text.is_empty()).into_iter().collect(),
        truncate: true,
        dimensions: None,
        options: body.options.unwrap_or_default(),
        normalize: false,
        param: "prompt",
    };
    let (answer, _) = request.run(&session, &body.model, "api/embeddings").await?;
    Ok(answer.map(|output| EmbeddingsAnswer { embedding: output.rows.into_iter().next().unwrap_or_default() }))
}

/// Texts to embed.
struct Request {
    texts: Vec<String>,
    truncate: bool,
    dimensions: Option<usize>,
    options: Options,
    /// Whether the embeddings are L2-normalized; models that always normalize do so in any case.
    normalize: bool,
    param: &'static str,
}

impl Request {
    /// The embeddings, and how long the request waited for the model. Without texts the model is
    /// loaded, or unloaded.
    async fn run(
        self,
        session: &Session<'_>,
        given: &str,
        route: &'static str,
    ) -> Result<(Answer<EmbedOutput>, Duration), Fault> {
        self.note_ignored(session);
        if self.texts.is_empty() {
            let (_, load) = session.load_or_unload(given).await?;
            let body = EmbedOutput { rows: Vec::new(), usage: Usage::default() };
            return Ok((Answer { body, compute: Compute::default() }, load));
        }
        session.app.check_batch(self.texts.len(), self.param)?;
        let LoadedModel { name, lease, load } = session.open(given, RequestKind::Embed).await?;
        let call = session.app.call(route, session.context, Some(&name), RequestKind::Embed)?;
        drop(lease);
        let mut params = EmbedParams {
            truncate: if self.truncate { Truncate::Right } else { Truncate::Never },
            prompt: session.app.prompt(None),
            prompt_given: false,
            normalize: self.normalize,
            dimensions: self.dimensions,
            max_tokens: self.options.num_ctx.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
            pooling: session.app.config.pooling,
            pooling_given: false,
            param: self.param,
        };
        let items: Vec<Item> = self.texts.into_iter().map(Item::Text).collect();
        let output = call
            .run(move |served, caller| {
                params.normalize |= !matches!(served.model, TaskModel::Embed(_));
                embedding::embed(served, caller, items, &params)
            })
            .await?;
        let usage = output.usage;
        Ok((call.answer(output, usage), load))
    }

    /// Names the options of language models, which have no effect on embeddings.
    fn note_ignored(&self, session: &Session<'_>) {
        let Options {
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            num_predict,
            stop,
            num_ctx: _,
        } = &self.options;
        for (name, is_set) in [
            ("temperature", temperature.is_some()),
            ("top_k", top_k.is_some()),
            ("top_p", top_p.is_some()),
            ("min_p", min_p.is_some()),
            ("repeat_penalty", repeat_penalty.is_some()),
            ("presence_penalty", presence_penalty.is_some()),
            ("frequency_penalty", frequency_penalty.is_some()),
            ("seed", seed.is_some()),
            ("num_predict", num_predict.is_some()),
            ("stop", stop.is_some()),
        ] {
            if is_set {
                session.context.note_ignored(&format!("options.{name}"));
            }
        }
    }
}
