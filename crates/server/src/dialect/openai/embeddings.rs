//! Vectors of texts and images.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::embedding::{self, How};
use crate::error::Fault;
use crate::trail::Trail;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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

/// A vector an input.
#[utoipa::path(post, path = "/v1/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, description = "A vector an input", body = EmbeddingResponse)))]
async fn embeddings(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    made(&app, &trail, body).await
}

/// The same; texts and images go into one space.
#[utoipa::path(post, path = "/v1/images/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, description = "A vector an input", body = EmbeddingResponse)))]
async fn images(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    made(&app, &trail, body).await
}

async fn made(app: &Arc<App>, trail: &Arc<Trail>, body: EmbeddingRequest) -> Result<Answer<EmbeddingResponse>, Fault> {
    let items = body.input.items;
    app.check_batch(items.len(), "input")?;
    let how = How {
        truncate: app.truncates(body.truncate, TruncationDirection::Right),
        prompted: body.prompt_name.is_some(),
        prompt: app.prompt(body.prompt_name),
        normalize: body.normalize.unwrap_or(true),
        dimensions: body.dimensions,
        param: "input",
    };
    let call = app.call("v1/embeddings", trail, body.model.as_deref(), embedding::wanted(&items))?;
    let made = call.run(move |served, caller| embedding::embed(served, caller, items, &how)).await?;
    let format = body.encoding_format.unwrap_or_default();
    let one = |(index, row): (usize, Vec<f32>)| Embedding {
        object: "embedding".into(),
        embedding: written(row, format),
        index,
    };
    let told = EmbeddingResponse {
        object: "list".into(),
        data: made.rows.into_iter().enumerate().map(one).collect(),
        model: call.served().id.clone(),
        usage: EmbeddingUsage { prompt_tokens: made.usage.tokens, total_tokens: made.usage.tokens },
    };
    Ok(call.answer(told, made.usage))
}

fn written(row: Vec<f32>, format: EncodingFormat) -> Vector {
    match format {
        EncodingFormat::Float => Vector::Float(row),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
            Vector::Base64(STANDARD.encode(bytes))
        }
    }
}
