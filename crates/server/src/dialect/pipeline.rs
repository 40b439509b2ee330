//! One path for the task of the first model, as huggingface_hub's `InferenceClient` expects of a
//! URL (SageMaker calls it `/invocations`); and token classification, which no other API here has.

use super::tei;
use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::json_body::{self, JsonBody};
use crate::model_manager::ModelStatus;
use crate::served_model::{RequestKind, ServedModel};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use sconce_api::pipeline::{
    AggregationStrategy, FunctionToApply, TagParameters, TagRequest, TagResponse, Tagged, TextClassificationRequest,
    Texts,
};
use sconce_api::tei::{EmbedRequest, PredictResponse, Prediction, TruncationDirection};
use sconce_engine::{GlinerOptions, Loaded, Scores, Strategy, TagOptions, TaskModel};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(root)).routes(routes!(invocations)).routes(routes!(tag))
}

/// Runs the task of the first model: embedding, classification, reranking or token classification.
#[utoipa::path(post, path = "/", request_body = EmbedRequest,
    responses((status = 200, description = "The response of the path for the model's task", body = Vec<serde_json::Value>)))]
async fn root(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    run_task(&app, request).await
}

/// The same as `POST /`.
#[utoipa::path(post, path = "/invocations", request_body = EmbedRequest,
    responses((status = 200, description = "The response of the path for the model's task", body = Vec<serde_json::Value>)))]
async fn invocations(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    run_task(&app, request).await
}

async fn run_task(app: &Arc<App>, request: Request) -> Result<Response, Fault> {
    let (bytes, context) = json_body::read(request, app).await?;
    let all = app.models.list();
    let Some(first) = all.first() else {
        return Err(Fault::new(FaultKind::NoModel, "this server has no models; load one with POST /v1/models/load"));
    };
    let Some(served) = &first.served else {
        // The lease fails with the load progress or the load error.
        app.models.lease(Some(&first.spec.id), RequestKind::Tokenize).map(drop)?;
        return Err(Fault::new(FaultKind::Loading, "the model is loading; retry in a moment"));
    };
    debug_assert!(matches!(first.status, ModelStatus::Ready));
    match &served.model {
        TaskModel::Embed(_) | TaskModel::M3(_) | TaskModel::Clip(_) if tei::is_similarity(&bytes) => {
            Ok(tei::similarity_of(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Embed(_) | TaskModel::M3(_) | TaskModel::Clip(_) => {
            Ok(tei::embed_of(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Sparse(_) => {
            Ok(tei::embed_sparse_of(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Multi(_) => {
            Ok(tei::embed_all_of(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Rerank(_) => {
            Ok(tei::rerank(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Tag(_) | TaskModel::Gliner(_) => {
            Ok(tags(app, &context, json_body::parse(&bytes, &context)?).await?.into_response())
        }
        TaskModel::Classify(_) => Ok(labels(app, &context, json_body::parse(&bytes, &context)?).await?.into_response()),
        TaskModel::Generate(_) | TaskModel::Seq2Seq(_) => {
            let what = "this model generates text; use /v1/chat/completions or /v1/completions";
            Err(Fault::new(FaultKind::UnsupportedTask, what))
        }
    }
}

/// Text classification. The response is a list per text even for one text, as the client expects.
async fn labels(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: TextClassificationRequest,
) -> Result<Answer<PredictResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let call = app.call("predict", context, None, RequestKind::Classify)?;
    let (truncate, parameters) = (app.truncation(None, TruncationDirection::Right), body.parameters);
    let (all, usage) = call
        .run(move |served, caller| {
            let function = parameters.function_to_apply;
            let params = tei::ClassifyParams { raw: function.is_some(), truncate };
            let outputs = tei::classify(&served.model, caller, &body.inputs.items, params)?;
            let characters = body.inputs.items.iter().map(tei::length).sum();
            let usage = Usage { tokens: outputs.tokens.iter().sum(), characters };
            let one = |mut predictions: Vec<Prediction>| {
                if let Some(function) = function {
                    apply(function, &mut predictions);
                }
                predictions.truncate(parameters.top_k.unwrap_or(usize::MAX));
                predictions
            };
            Ok((outputs.results.into_iter().map(tei::predictions).map(one).collect::<Vec<_>>(), usage))
        })
        .await?;
    Ok(call.answer(PredictResponse::Several(all), usage))
}

/// Applies the function to the logits. No function changes the order of the labels.
fn apply(function: FunctionToApply, outputs: &mut [Prediction]) {
    let scores = match function {
        FunctionToApply::Softmax => Scores::Softmax,
        FunctionToApply::Sigmoid => Scores::Sigmoid,
        FunctionToApply::None => Scores::Raw,
    };
    let scaled = scores.apply(&outputs.iter().map(|p| p.score).collect::<Vec<_>>());
    outputs.iter_mut().zip(scaled).for_each(|(p, score)| p.score = score);
}

/// Token classification (NER): names, places and other entities, with their character offsets.
#[utoipa::path(post, path = "/tag", request_body = TagRequest,
    responses((status = 200, description = "The entities of each text", body = TagResponse)))]
async fn tag(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<TagRequest>,
) -> Result<Answer<TagResponse>, Fault> {
    tags(&app, &context, body).await
}

async fn tags(app: &Arc<App>, context: &Arc<HttpContext>, body: TagRequest) -> Result<Answer<TagResponse>, Fault> {
    let (texts, single) = match body.inputs {
        Texts::One(text) => (vec![text], true),
        Texts::Several(texts) => (texts, false),
    };
    app.check_batch(texts.len(), "inputs")?;
    let ignored = body.parameters.ignore_labels.unwrap_or_else(|| vec!["O".into()]);
    if !ignored.iter().any(|l| l == "O") {
        let what = "`ignore_labels` must contain `O`: tokens outside of entities are always left out";
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
    let options =
        TagOptions::default().with_strategy(strategy).with_stride(body.parameters.stride).with_ignore(ignored);
    let truncate = app.truncation(None, TruncationDirection::Right);
    let TagParameters { labels, threshold, nested, multi_label, .. } = body.parameters;
    if let Some(threshold) = threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
        let what = format!("`threshold` is {threshold}; scores are from 0 to 1");
        return Err(Fault::invalid(what).at("parameters.threshold"));
    }
    let call = app.call("tag", context, body.model.as_deref(), RequestKind::Tag)?;
    let all = call
        .run(move |served: &ServedModel, caller| match &served.model {
            TaskModel::Tag(tagger) => {
                if labels.is_some() || nested || multi_label {
                    let what =
                        "`labels`, `nested` and `multi_label` are for GLiNER models; this one has its own labels";
                    return Err(Fault::invalid(what).at("parameters.labels"));
                }
                let options = options.with_threshold(threshold.unwrap_or(0.0));
                Ok(tagger.with_context(caller).with_truncation(truncate).tag_with(&texts, &options)?)
            }
            TaskModel::Gliner(model) => {
                let Some(labels) = labels.filter(|labels| !labels.is_empty()) else {
                    let what = "a GLiNER model needs `labels`, the labels of the entities to find";
                    return Err(Fault::invalid(what).at("parameters.labels"));
                };
                if strategy != Strategy::Simple {
                    let what = "a GLiNER model scores spans of words; it takes no `aggregation_strategy`";
                    return Err(Fault::invalid(what).at("parameters.aggregation_strategy"));
                }
                if options.stride.is_some() {
                    let what = "a GLiNER model takes no `stride`; it reads a text up to its own limit";
                    return Err(Fault::invalid(what).at("parameters.stride"));
                }
                if options.ignore.iter().any(|label| label != "O") {
                    let what = "a GLiNER model takes no `ignore_labels`: it finds the labels of `labels` alone";
                    return Err(Fault::invalid(what).at("parameters.ignore_labels"));
                }
                let threshold = threshold.unwrap_or(GlinerOptions::default().threshold);
                let options = GlinerOptions { threshold, nested, multi_label };
                Ok(model.with_context(caller).with_truncation(truncate).tag(&texts, &labels, &options)?)
            }
            _ => Err(served.unsupported(RequestKind::Tag)),
        })
        .await?;
    let usage = Usage { tokens: all.tokens.iter().sum(), characters };
    let grouped = strategy != Strategy::None;
    let tagged = |e: sconce_engine::Entity| {
        let (entity_group, entity) = if grouped { (Some(e.label), None) } else { (None, Some(e.label)) };
        Tagged { entity_group, entity, score: e.score, word: e.word, start: e.start, end: e.end }
    };
    let of = |entities: Vec<sconce_engine::Entity>| -> Vec<Tagged> { entities.into_iter().map(tagged).collect() };
    let mut all: Vec<Vec<Tagged>> = all.results.into_iter().map(of).collect();
    let response = if single { TagResponse::One(all.pop().unwrap_or_default()) } else { TagResponse::Several(all) };
    Ok(call.answer(response, usage))
}
