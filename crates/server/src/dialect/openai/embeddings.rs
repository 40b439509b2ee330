//! Embeddings of texts and images.

use crate::answer::Answer;
use crate::app::App;
use crate::embedding::{self, EmbedParams};
use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use axum::extract::State;
use sconce_api::openai::embeddings::{
    Embedding, EmbeddingRequest, EmbeddingResponse, EmbeddingUsage, EncodingFormat, Vector,
};
use sconce_api::tei::TruncationDirection;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(embeddings)).routes(routes!(images))
}

/// Embeds inputs: one embedding per input.
#[utoipa::path(post, path = "/v1/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, description = "One embedding per input", body = EmbeddingResponse)))]
async fn embeddings(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    embed(&app, &context, body).await
}

/// The same as `/v1/embeddings`; CLIP models embed texts and images into one space.
#[utoipa::path(post, path = "/v1/images/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, description = "One embedding per input", body = EmbeddingResponse)))]
async fn images(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    embed(&app, &context, body).await
}

async fn embed(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: EmbeddingRequest,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    let items = body.input.items;
    app.check_batch(items.len(), "input")?;
    let params = EmbedParams {
        truncate: app.truncation(body.truncate, TruncationDirection::Right),
        prompt_given: body.prompt_name.is_some(),
        prompt: app.prompt(body.prompt_name),
        normalize: body.normalize.unwrap_or(true),
        dimensions: body.dimensions,
        max_tokens: None,
        pooling: app.pooling(body.pooling)?,
        pooling_given: body.pooling.is_some(),
        param: "input",
    };
    let call = app.call("v1/embeddings", context, body.model.as_deref(), embedding::request_kind(&items))?;
    let output = call.run(move |served, caller| embedding::embed(served, caller, items, &params)).await?;
    let format = body.encoding_format.unwrap_or_default();
    let one = |(index, row): (usize, Vec<f32>)| Embedding {
        object: "embedding".into(),
        embedding: encoded(row, format),
        index,
    };
    let response = EmbeddingResponse {
        object: "list".into(),
        data: output.rows.into_iter().enumerate().map(one).collect(),
        model: call.served().id.clone(),
        usage: EmbeddingUsage { prompt_tokens: output.usage.tokens, total_tokens: output.usage.tokens },
    };
    Ok(call.answer(response, output.usage))
}

fn encoded(row: Vec<f32>, format: EncodingFormat) -> Vector {
    match format {
        EncodingFormat::Float => Vector::Float(row),
        EncodingFormat::Base64 => Vector::Base64(embedding::base64_of(&row)),
    }
}
