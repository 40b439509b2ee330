//! Labels and orders.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::{self, Asked};
use crate::call::Usage;
use crate::dialect::cohere;
use crate::error::{Dialect, Fault};
use crate::served::Want;
use crate::trail::Trail;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use sconce_api::tei::{
    PredictRequest, PredictResponse, Prediction, Rank, RerankRequest, RerankResponse, TextOrPair as Given,
};
use sconce_engine::{Label, Outputs, RankOptions, RequestContext, TextOrPair, Truncate};
use sconce_engine::{Loaded, TaskModel};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(predict)).routes(routes!(rerank_either))
}

/// The labels of texts or pairs.
#[utoipa::path(post, path = "/predict", request_body = PredictRequest,
    responses((status = 200, description = "The labels, the best first", body = PredictResponse)))]
async fn predict(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<PredictRequest>,
) -> Result<Answer<PredictResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let truncate = app.truncates(body.truncate, body.truncation_direction);
    let (alone, raw) = (body.inputs.alone, body.raw_scores);
    let call = app.call("predict", &trail, body.model.as_deref(), Want::Classify)?;
    let characters = body.inputs.items.iter().map(length).sum();
    let how = Labelling { raw, truncate };
    let all = call.run(move |served, caller| classify(&served.model, caller, &body.inputs.items, how)).await?;
    let usage = Usage { tokens: all.tokens.iter().sum(), characters };
    let mut all: Vec<Vec<Prediction>> = all.results.into_iter().map(predictions).collect();
    let told = if alone { PredictResponse::One(all.pop().unwrap_or_default()) } else { PredictResponse::Several(all) };
    Ok(call.answer(told, usage))
}

pub(crate) fn predictions(labels: Vec<Label>) -> Vec<Prediction> {
    labels.into_iter().map(|l| Prediction { score: l.score, label: l.label }).collect()
}

pub(crate) fn length(given: &Given) -> usize {
    given.text.chars().count() + given.pair.as_ref().map_or(0, |p| p.chars().count())
}

/// How texts become labels.
#[derive(Clone, Copy)]
pub(crate) struct Labelling {
    /// Leave the model's numbers as they are.
    pub(crate) raw: bool,
    /// What becomes of texts that are too long.
    pub(crate) truncate: Truncate,
}

/// What a model says of each, where it gives labels.
pub(crate) fn classify(
    task: &TaskModel,
    caller: &RequestContext,
    given: &[Given],
    how: Labelling,
) -> Result<Outputs<Vec<Label>>, Fault> {
    let texts: Vec<TextOrPair<'_>> =
        given.iter().map(|g| TextOrPair { text: &g.text, pair: g.pair.as_deref() }).collect();
    match task {
        TaskModel::Classify(classifier) => {
            Ok(classifier.with_context(caller).with_truncation(how.truncate).classify(&texts, how.raw)?)
        }
        _ => Err(Fault::invalid("this model ranks; send `query` and `texts` to /rerank").at("model")),
    }
}

/// Texts, or documents, in the order in which they answer a query: `texts` are asked for in TEI's shape, `documents` in Cohere's
/// and Jina's.
#[utoipa::path(post, path = "/rerank", request_body = RerankRequest,
    responses((status = 200, description = "The texts, the best first", body = RerankResponse)))]
async fn rerank_either(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    let (bytes, trail) = asked::body(request, &app).await?;
    if cohere::is_meant(&bytes) {
        trail.speaks(Dialect::Cohere);
        let body = asked::understood(&bytes, &trail)?;
        return Ok(cohere::rerank(&app, &trail, body, "1").await?.into_response());
    }
    let body = asked::understood(&bytes, &trail)?;
    Ok(rerank(&app, &trail, body).await?.into_response())
}

/// In TEI's shape.
pub(crate) async fn rerank(
    app: &Arc<App>,
    trail: &Arc<Trail>,
    body: RerankRequest,
) -> Result<Answer<RerankResponse>, Fault> {
    app.check_batch(body.texts.len(), "texts")?;
    let truncate = app.truncates(body.truncate, body.truncation_direction);
    let call = app.call("rerank", trail, body.model.as_deref(), Want::Rerank)?;
    let characters = body.texts.iter().map(|t| t.chars().count()).sum::<usize>() + body.query.chars().count();
    let ranking = call
        .run(move |served, caller| {
            let TaskModel::Rerank(reranker) = &served.model else { return Err(served.unfit(Want::Rerank)) };
            let options = RankOptions { raw: body.raw_scores, top_n: None, texts: body.return_text };
            let reranker = reranker.with_context(caller).with_truncation(truncate);
            Ok(reranker.rerank(&body.query, &body.texts, options)?)
        })
        .await?;
    let usage = Usage { tokens: ranking.tokens, characters };
    let ranks = ranking.ranked.into_iter().map(|r| Rank { index: r.index, text: r.text, score: r.score }).collect();
    Ok(call.answer(RerankResponse(ranks), usage))
}
