//! `/embedding`, `/embeddings` and `/reranking`.

use crate::answer::Answer;
use crate::app::App;
use crate::dialect::tei;
use crate::error::Fault;
use crate::json_body::JsonBody;
use axum::extract::{Request, State};
use axum::response::Response;
use sconce_api::input::{Inputs, Item};
use sconce_api::llama_cpp::{EmbeddingRequest, EmbeddingResponse, IndexedEmbedding, PromptPart};
use sconce_api::tei::{EmbedRequest, EmbedResponse, RerankRequest, RerankResponse, TruncationDirection};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(embedding)).routes(routes!(embeddings)).routes(routes!(reranking))
}

/// Embeds inputs in llama.cpp's format.
#[utoipa::path(post, path = "/embedding", request_body = EmbeddingRequest,
    responses((status = 200, description = "The vectors of each input", body = EmbeddingResponse)))]
async fn embedding(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    let normalize = match body.embd_normalize {
        None | Some(2) => true,
        Some(-1) => false,
        Some(other) => {
            let what = format!("`embd_normalize` is {other}; it must be 2 (a length of 1) or -1 (not at all)");
            return Err(Fault::invalid(what).at("embd_normalize"));
        }
    };
    let given = body.input.or(body.content);
    let given = given.ok_or_else(|| Fault::invalid("send the text as `content` or `input`").at("content"))?;
    let request = EmbedRequest {
        inputs: Inputs { items: given.items.into_iter().map(item).collect(), alone: given.alone },
        model: body.model,
        truncate: None,
        truncation_direction: TruncationDirection::default(),
        prompt_name: None,
        normalize,
        dimensions: None,
        pooling: body.pooling,
    };
    let answer = tei::embed_of(&app, &context, request).await?;
    let indexed = |(index, embedding)| IndexedEmbedding { index, embedding };
    Ok(answer.map(|vectors| {
        EmbeddingResponse(match vectors {
            EmbedResponse::Pooled(rows) => rows.into_iter().map(|row| vec![row]).enumerate().map(indexed).collect(),
            EmbedResponse::Tokens(all) => all.0.into_iter().enumerate().map(indexed).collect(),
        })
    }))
}

/// A text, tokens, or both in one.
fn item(mut parts: Vec<PromptPart>) -> Item {
    let ids = parts.iter().map(|part| if let PromptPart::Id(id) = part { Some(*id) } else { None });
    if let Some(ids) = ids.collect() {
        return Item::Ids(ids);
    }
    match (parts.len(), parts.pop()) {
        (1, Some(PromptPart::Text(text))) => Item::Text(text),
        (_, last) => Item::Mixed(parts.into_iter().chain(last).collect()),
    }
}

/// The same as `/embedding`.
#[utoipa::path(post, path = "/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, description = "The vectors of each input", body = EmbeddingResponse)))]
async fn embeddings(
    app: State<Arc<App>>,
    body: JsonBody<EmbeddingRequest>,
) -> Result<Answer<EmbeddingResponse>, Fault> {
    embedding(app, body).await
}

/// The same as `/rerank`.
#[utoipa::path(post, path = "/reranking", request_body = RerankRequest,
    responses((status = 200, description = "The texts, most relevant first", body = RerankResponse)))]
async fn reranking(app: State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    tei::rerank_either(app, request).await
}
