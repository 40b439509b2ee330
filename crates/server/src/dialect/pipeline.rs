//! One path for whatever the first model does, which is what huggingface_hub's `InferenceClient` expects of an address (and what
//! SageMaker calls `/invocations`); and labels of tokens, which no other dialect here has.

use super::tei;
use crate::answer::Answer;
use crate::app::App;
use crate::asked::{self, Asked};
use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::house::Standing;
use crate::served::{Served, Want};
use crate::trail::Trail;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use sconce_api::pipeline::{
    AggregationStrategy, FunctionToApply, TagRequest, TagResponse, Tagged, TextClassificationRequest, Texts,
};
use sconce_api::tei::{EmbedRequest, PredictResponse, Prediction, TruncationDirection};
use sconce_engine::{Loaded, TaskModel};
use sconce_engine::{Scores, Strategy};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(root)).routes(routes!(invocations)).routes(routes!(tag))
}

/// Whatever the first model does: vectors, labels, an order, labels of tokens.
#[utoipa::path(post, path = "/", request_body = EmbedRequest,
    responses((status = 200, description = "As the model's own path answers", body = Vec<serde_json::Value>)))]
async fn root(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    whatever(&app, request).await
}

/// The same.
#[utoipa::path(post, path = "/invocations", request_body = EmbedRequest,
    responses((status = 200, description = "As the model's own path answers", body = Vec<serde_json::Value>)))]
async fn invocations(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    whatever(&app, request).await
}

async fn whatever(app: &Arc<App>, request: Request) -> Result<Response, Fault> {
    let (bytes, trail) = asked::body(request, app).await?;
    let all = app.house.list();
    let Some(first) = all.first() else { return Err(Fault::new(FaultKind::NoModel, "no model is served here")) };
    let Some(served) = &first.served else {
        // To be told how far it is, or why it is not there.
        app.house.lease(Some(&first.spec.id), Want::Tokens).map(drop)?;
        return Err(Fault::new(FaultKind::Loading, "the model is being loaded; come again in a moment"));
    };
    debug_assert!(matches!(first.standing, Standing::Ready));
    match &served.model {
        TaskModel::Embed(_) | TaskModel::M3(_) | TaskModel::Clip(_) if tei::is_similarity(&bytes) => {
            Ok(tei::similarity_of(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response())
        }
        TaskModel::Embed(_) | TaskModel::M3(_) | TaskModel::Clip(_) => {
            Ok(tei::embed_of(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response())
        }
        TaskModel::Sparse(_) => {
            Ok(tei::embed_sparse_of(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response())
        }
        TaskModel::Multi(_) => {
            Ok(tei::embed_all_of(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response())
        }
        TaskModel::Rerank(_) => Ok(tei::rerank(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response()),
        TaskModel::Tag(_) => Ok(tags(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response()),
        TaskModel::Classify(_) => Ok(labels(app, &trail, asked::understood(&bytes, &trail)?).await?.into_response()),
        TaskModel::Generate(_) | TaskModel::Seq2Seq(_) => {
            let what = "texts are written at /v1/chat/completions and /v1/completions";
            Err(Fault::new(FaultKind::Unfit, what))
        }
    }
}

/// Labels, in a list for each text even where there is one text: so the client takes them.
async fn labels(
    app: &Arc<App>,
    trail: &Arc<Trail>,
    body: TextClassificationRequest,
) -> Result<Answer<PredictResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let call = app.call("predict", trail, None, Want::Classify)?;
    let (truncate, how) = (app.truncates(None, TruncationDirection::Right), body.parameters);
    let (all, usage) = call
        .run(move |served, caller| {
            let function = how.function_to_apply;
            let labelling = tei::Labelling { raw: function.is_some(), truncate };
            let said = tei::classify(&served.model, caller, &body.inputs.items, labelling)?;
            let characters = body.inputs.items.iter().map(tei::length).sum();
            let usage = Usage { tokens: said.tokens.iter().sum(), characters };
            let one = |mut said: Vec<Prediction>| {
                if let Some(function) = function {
                    apply(function, &mut said);
                }
                said.truncate(how.top_k.unwrap_or(usize::MAX));
                said
            };
            Ok((said.results.into_iter().map(tei::predictions).map(one).collect::<Vec<_>>(), usage))
        })
        .await?;
    Ok(call.answer(PredictResponse::Several(all), usage))
}

/// None of the functions changes the order.
fn apply(function: FunctionToApply, said: &mut [Prediction]) {
    let scores = match function {
        FunctionToApply::Softmax => Scores::Softmax,
        FunctionToApply::Sigmoid => Scores::Sigmoid,
        FunctionToApply::None => Scores::Raw,
    };
    let made = scores.apply(&said.iter().map(|p| p.score).collect::<Vec<_>>());
    said.iter_mut().zip(made).for_each(|(p, score)| p.score = score);
}

/// Names, places and whatever else the model labels, with the characters where they stand.
#[utoipa::path(post, path = "/tag", request_body = TagRequest,
    responses((status = 200, description = "The labelled pieces of each text", body = TagResponse)))]
async fn tag(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<TagRequest>,
) -> Result<Answer<TagResponse>, Fault> {
    tags(&app, &trail, body).await
}

async fn tags(app: &Arc<App>, trail: &Arc<Trail>, body: TagRequest) -> Result<Answer<TagResponse>, Fault> {
    let (texts, alone) = match body.inputs {
        Texts::One(text) => (vec![text], true),
        Texts::Several(texts) => (texts, false),
    };
    app.check_batch(texts.len(), "inputs")?;
    let ignored = body.parameters.ignore_labels.unwrap_or_else(|| vec!["O".into()]);
    if !ignored.iter().any(|l| l == "O") {
        let what = "the label `O`, which says that a token is nothing, is always left out";
        return Err(Fault::invalid(what).at("parameters.ignore_labels"));
    }
    let characters = texts.iter().map(|t| t.chars().count()).sum();
    let strategy = match body.parameters.aggregation_strategy {
        AggregationStrategy::None => Strategy::None,
        AggregationStrategy::Simple => Strategy::Simple,
        AggregationStrategy::First => Strategy::First,
        AggregationStrategy::Average => Strategy::Average,
        AggregationStrategy::Max => Strategy::Max,
    };
    let truncate = app.truncates(None, TruncationDirection::Right);
    let call = app.call("tag", trail, body.model.as_deref(), Want::Tag)?;
    let all = call
        .run(move |served: &Served, caller| match &served.model {
            TaskModel::Tag(tagger) => {
                Ok(tagger.with_context(caller).with_truncation(truncate).tag(&texts, strategy, 0.0)?)
            }
            _ => Err(served.unfit(Want::Tag)),
        })
        .await?;
    let usage = Usage { tokens: all.tokens.iter().sum(), characters };
    let grouped = strategy != Strategy::None;
    let told = |e: sconce_engine::Entity| {
        let (entity_group, entity) = if grouped { (Some(e.label), None) } else { (None, Some(e.label)) };
        Tagged { entity_group, entity, score: e.score, word: e.word, start: e.start, end: e.end }
    };
    let of = |entities: Vec<sconce_engine::Entity>| -> Vec<Tagged> {
        entities.into_iter().filter(|e| !ignored.contains(&e.label)).map(told).collect()
    };
    let mut all: Vec<Vec<Tagged>> = all.results.into_iter().map(of).collect();
    let told = if alone { TagResponse::One(all.pop().unwrap_or_default()) } else { TagResponse::Several(all) };
    Ok(call.answer(told, usage))
}
