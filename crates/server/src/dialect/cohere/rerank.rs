//! Reranking.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::tei::rank_pooling;
use crate::error::Fault;
use crate::http_context::{HttpContext, fresh_id};
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::extract::State;
use sconce_api::cohere::{
    ApiVersion, BilledUnits, Document, Meta, RerankRequest, RerankResponse, RerankResult, Returned, Tokens,
    Usage as JinaUsage,
};
use sconce_engine::TaskModel;
use sconce_engine::{Loaded, RankOptions, Reranker, Truncate};
use serde::de::IgnoredAny;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes of this API.
pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(v1)).routes(routes!(v2))
}

/// Reranks documents by their relevance to a query.
#[utoipa::path(post, path = "/v1/rerank", request_body = RerankRequest,
    responses((status = 200, description = "The documents, most relevant first", body = RerankResponse)))]
async fn v1(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<RerankRequest>,
) -> Result<Answer<RerankResponse>, Fault> {
    rerank(&app, &context, body, "1").await
}

/// The same as `/v1/rerank`.
#[utoipa::path(post, path = "/v2/rerank", request_body = RerankRequest,
    responses((status = 200, description = "The documents, most relevant first", body = RerankResponse)))]
async fn v2(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<RerankRequest>,
) -> Result<Answer<RerankResponse>, Fault> {
    rerank(&app, &context, body, "2").await
}

/// Whether a body for `/rerank` is in this API's format: it has `documents` and no `texts`.
pub(crate) fn is_cohere(bytes: &[u8]) -> bool {
    let keys = serde_json::from_slice::<HashMap<String, IgnoredAny>>(bytes);
    keys.is_ok_and(|keys| keys.contains_key("documents") && !keys.contains_key("texts"))
}

pub(crate) async fn rerank(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: RerankRequest,
    version: &str,
) -> Result<Answer<RerankResponse>, Fault> {
    app.check_batch(body.documents.len(), "documents")?;
    if body.top_n == Some(0) {
        return Err(Fault::invalid("`top_n` is 0; it must be at least 1, or left out").at("top_n"));
    }
    if body.max_tokens_per_doc == Some(0) {
        return Err(
            Fault::invalid("`max_tokens_per_doc` is 0; it must be at least 1, or left out").at("max_tokens_per_doc")
        );
    }
    // This API truncates texts that are too long by default.
    let truncate = if body.truncate.unwrap_or(true) { Truncate::Right } else { Truncate::Never };
    let documents: Vec<String> = body.documents.into_iter().map(Document::into_text).collect();
    let call = app.call("rerank", context, body.model.as_deref(), RequestKind::Rerank)?;
    let characters = documents.iter().map(|t| t.chars().count()).sum::<usize>() + body.query.chars().count();
    let options = RankOptions::default()
        .with_pooling(rank_pooling(body.pooling))
        .with_top_n(body.top_n)
        .with_texts(body.return_documents.unwrap_or_default());
    let ranking = call
        .run(move |served, caller| {
            let TaskModel::Rerank(reranker) = &served.model else {
                return Err(served.unsupported(RequestKind::Rerank));
            };
            let reranker = reranker.with_context(caller).with_truncation(truncate);
            let Some(max_tokens) = body.max_tokens_per_doc else {
                return Ok(reranker.rerank(&body.query, &documents, options)?);
            };
            let heads =
                documents.iter().map(|d| head(&reranker, d, max_tokens)).collect::<Result<Vec<&str>, Fault>>()?;
            let mut ranking = reranker.rerank(&body.query, &heads, options)?;
            // Return the documents as they were sent.
            for r in &mut ranking.ranked {
                r.text = r.text.as_ref().and(documents.get(r.index).cloned());
            }
            Ok(ranking)
        })
        .await?;
    let tokens = ranking.tokens;
    let result = |r: sconce_engine::Ranked| RerankResult {
        index: r.index,
        relevance_score: r.score,
        document: r.text.map(|text| Returned { text }),
    };
    let response = RerankResponse {
        id: fresh_id(),
        model: call.served().id.clone(),
        results: ranking.ranked.into_iter().map(result).collect(),
        meta: Meta {
            api_version: ApiVersion { version: version.into() },
            billed_units: BilledUnits { search_units: Some(1), ..BilledUnits::default() },
            tokens: Tokens { input_tokens: tokens },
        },
        usage: JinaUsage { total_tokens: tokens, prompt_tokens: tokens },
    };
    Ok(call.answer(response, Usage { tokens, characters }))
}

/// The first `max_tokens` tokens of a document, as text.
fn head<'a>(reranker: &Reranker, document: &'a str, max_tokens: usize) -> Result<&'a str, Fault> {
    let tokens = reranker.tokenize(document, false)?;
    let Some((_, end)) = tokens.get(max_tokens).and_then(|_| tokens[max_tokens - 1].place) else { return Ok(document) };
    Ok(document.char_indices().nth(end).map_or(document, |(byte, _)| &document[..byte]))
}
