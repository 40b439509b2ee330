//! Text classification and reranking.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::cohere;
use crate::error::{Dialect, Fault};
use crate::http_context::HttpContext;
use crate::json_body::{self, JsonBody};
use crate::served_model::RequestKind;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use sconce_api::tei::{
    PredictRequest, PredictResponse, Prediction, Rank, RankPooling, RerankRequest, RerankResponse,
    TextOrPair as TextInput,
};
use sconce_engine::{Label, Outputs, RankOptions, RequestContext, TextOrPair, Truncate};
use sconce_engine::{Loaded, TaskModel};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(predict)).routes(routes!(rerank_either))
}

/// Classifies texts or text pairs.
#[utoipa::path(post, path = "/predict", request_body = PredictRequest,
    responses((status = 200, description = "The labels, best first", body = PredictResponse)))]
async fn predict(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<PredictRequest>,
) -> Result<Answer<PredictResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let truncate = app.truncation(body.truncate, body.truncation_direction);
    let (single, raw) = (body.inputs.alone, body.raw_scores);
    let call = app.call("predict", &context, body.model.as_deref(), RequestKind::Classify)?;
    let characters = body.inputs.items.iter().map(length).sum();
    let params = ClassifyParams { raw, truncate };
    let all = call.run(move |served, caller| classify(&served.model, caller, &body.inputs.items, params)).await?;
    let usage = Usage { tokens: all.tokens.iter().sum(), characters };
    let mut all: Vec<Vec<Prediction>> = all.results.into_iter().map(predictions).collect();
    let response =
        if single { PredictResponse::One(all.pop().unwrap_or_default()) } else { PredictResponse::Several(all) };
    Ok(call.answer(response, usage))
}

pub(crate) fn predictions(labels: Vec<Label>) -> Vec<Prediction> {
    labels.into_iter().map(|l| Prediction { score: l.score, label: l.label }).collect()
}

pub(crate) fn length(inputs: &TextInput) -> usize {
    inputs.text.chars().count() + inputs.pair.as_ref().map_or(0, |p| p.chars().count())
}

/// Parameters of text classification.
#[derive(Clone, Copy)]
pub(crate) struct ClassifyParams {
    /// Return logits instead of probabilities.
    pub(crate) raw: bool,
    /// Truncation of texts that are too long.
    pub(crate) truncate: Truncate,
}

/// Classifies texts or pairs, if the model is a classifier.
pub(crate) fn classify(
    task: &TaskModel,
    caller: &RequestContext,
    inputs: &[TextInput],
    params: ClassifyParams,
) -> Result<Outputs<Vec<Label>>, Fault> {
    let texts: Vec<TextOrPair<'_>> =
        inputs.iter().map(|g| TextOrPair { text: &g.text, pair: g.pair.as_deref() }).collect();
    match task {
        TaskModel::Classify(classifier) => {
            Ok(classifier.with_context(caller).with_truncation(params.truncate).classify(&texts, params.raw)?)
        }
        _ => Err(Fault::invalid("this model is no classifier; for a reranker, send `query` and `texts` to /rerank")
            .at("model")),
    }
}

/// Reranks texts by their relevance to a query. A body with `texts` is in TEI's format, one with
/// `documents` in Cohere's and Jina's.
#[utoipa::path(post, path = "/rerank", request_body = RerankRequest,
    responses((status = 200, description = "The texts, most relevant first", body = RerankResponse)))]
pub(crate) async fn rerank_either(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    let (bytes, context) = json_body::read(request, &app).await?;
    if cohere::is_cohere(&bytes) {
        context.set_dialect(Dialect::Cohere);
        let body = json_body::parse(&bytes, &context)?;
        return Ok(cohere::rerank(&app, &context, body, "1").await?.into_response());
    }
    let body = json_body::parse(&bytes, &context)?;
    Ok(rerank(&app, &context, body).await?.into_response())
}

/// The engine's pooling of a reranker.
pub(crate) fn rank_pooling(pooling: RankPooling) -> sconce_engine::RankPooling {
    match pooling {
        RankPooling::Pooler => sconce_engine::RankPooling::Pooler,
        RankPooling::Cls => sconce_engine::RankPooling::Cls,
        RankPooling::Mean => sconce_engine::RankPooling::Mean,
    }
}

/// Reranking in TEI's format.
pub(crate) async fn rerank(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: RerankRequest,
) -> Result<Answer<RerankResponse>, Fault> {
    app.check_batch(body.texts.len(), "texts")?;
    if body.top_n == Some(0) {
        return Err(Fault::invalid("`top_n` is 0; it must be at least 1, or left out").at("top_n"));
    }
    let truncate = app.truncation(body.truncate, body.truncation_direction);
    let call = app.call("rerank", context, body.model.as_deref(), RequestKind::Rerank)?;
    let characters = body.texts.iter().map(|t| t.chars().count()).sum::<usize>() + body.query.chars().count();
    let ranking = call
        .run(move |served, caller| {
            let TaskModel::Rerank(reranker) = &served.model else {
                return Err(served.unsupported(RequestKind::Rerank));
            };
            let options = RankOptions::default()
                .with_raw(body.raw_scores)
                .with_texts(body.return_text)
                .with_top_n(body.top_n)
                .with_pooling(rank_pooling(body.pooling));
            let reranker = reranker.with_context(caller).with_truncation(truncate);
            Ok(reranker.rerank(&body.query, &body.texts, options)?)
        })
        .await?;
    let usage = Usage { tokens: ranking.tokens, characters };
    let ranks = ranking.ranked.into_iter().map(|r| Rank { index: r.index, text: r.text, score: r.score }).collect();
    Ok(call.answer(RerankResponse(ranks), usage))
}
