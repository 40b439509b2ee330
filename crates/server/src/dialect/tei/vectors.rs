//! Vectors.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::call::Usage;
use crate::embedding::{self, How, refuse_cut};
use crate::error::Fault;
use crate::served::{Task, Want};
use crate::trail::Trail;
use axum::extract::State;
use sconce_api::input::{Inputs, Item};
use sconce_api::tei::{
    EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseResponse, SimilarityRequest,
    SimilarityResponse, SparseValue, TruncationDirection,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(embed))
        .routes(routes!(embed_all))
        .routes(routes!(embed_sparse))
        .routes(routes!(similarity))
}

/// A vector an input.
#[utoipa::path(post, path = "/embed", request_body = EmbedRequest,
    responses((status = 200, description = "A vector an input", body = EmbedResponse)))]
async fn embed(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbedRequest>,
) -> Result<Answer<EmbedResponse>, Fault> {
    embed_of(&app, &trail, body).await
}

pub(crate) async fn embed_of(
    app: &Arc<App>,
    trail: &Trail,
    body: EmbedRequest,
) -> Result<Answer<EmbedResponse>, Fault> {
    let items = body.inputs.items;
    app.check_batch(items.len(), "inputs")?;
    right(body.truncation_direction)?;
    let how =
        How { normalize: body.normalize, dimensions: body.dimensions, ..app.how(body.truncate, body.prompt_name) };
    let call = app.call("embed", trail, body.model.as_deref(), embedding::wanted(&items))?;
    let made = call.run(move |served, caller| embedding::embed(served, caller, items, &how)).await?;
    Ok(call.answer(EmbedResponse(made.rows), made.usage))
}

/// A vector a token of each input.
#[utoipa::path(post, path = "/embed_all", request_body = EmbedAllRequest,
    responses((status = 200, description = "A vector a token of each input", body = EmbedAllResponse)))]
async fn embed_all(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbedAllRequest>,
) -> Result<Answer<EmbedAllResponse>, Fault> {
    embed_all_of(&app, &trail, body).await
}

pub(crate) async fn embed_all_of(
    app: &Arc<App>,
    trail: &Trail,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedAllResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    right(body.truncation_direction)?;
    let truncate = app.truncates(body.truncate);
    let call = app.call("embed_all", trail, body.model.as_deref(), Want::EmbedAll)?;
    let texts = texts(body.inputs).map_err(|fault| call.failed(fault))?;
    let characters = characters(&texts);
    let made = call
        .run(move |served, _| {
            let made = match &served.task {
                Task::Multi(multi) => multi.documents(&texts)?,
                _ => return Err(served.unfit(Want::EmbedAll)),
            };
            refuse_cut(&made.truncated, truncate, served.task.loaded().plan().max_tokens, "inputs")?;
            Ok(made)
        })
        .await?;
    let all = made.texts.iter().map(|text| text.rows().map(<[f32]>::to_vec).collect()).collect();
    Ok(call.answer(EmbedAllResponse(all), Usage { tokens: made.tokens.iter().sum(), characters }))
}

/// Weights over the vocabulary of each input.
#[utoipa::path(post, path = "/embed_sparse", request_body = EmbedAllRequest,
    responses((status = 200, description = "Weights of each input", body = EmbedSparseResponse)))]
async fn embed_sparse(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbedAllRequest>,
) -> Result<Answer<EmbedSparseResponse>, Fault> {
    embed_sparse_of(&app, &trail, body).await
}

pub(crate) async fn embed_sparse_of(
    app: &Arc<App>,
    trail: &Trail,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedSparseResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    right(body.truncation_direction)?;
    if body.prompt_name.is_some() {
        return Err(Fault::invalid("models that weigh their vocabulary have no prompts").at("prompt_name"));
    }
    let truncate = app.truncates(body.truncate);
    let call = app.call("embed_sparse", trail, body.model.as_deref(), Want::Sparse)?;
    let texts = texts(body.inputs).map_err(|fault| call.failed(fault))?;
    let characters = characters(&texts);
    let (vectors, tokens) = call
        .run(move |served, _| {
            let (vectors, tokens, cut) = match &served.task {
                Task::Sparse(sparse) => {
                    let made = sparse.embed(&texts)?;
                    (made.vectors, made.tokens, made.truncated)
                }
                Task::M3(m3) => {
                    let made = m3.embed(&texts)?;
                    (made.texts.into_iter().map(|t| t.sparse).collect(), made.tokens, made.truncated)
                }
                _ => return Err(served.unfit(Want::Sparse)),
            };
            refuse_cut(&cut, truncate, served.task.loaded().plan().max_tokens, "inputs")?;
            Ok((vectors, tokens))
        })
        .await?;
    let value = |(id, weight): (&u32, &f32)| SparseValue { index: *id, value: *weight };
    let all = vectors.iter().map(|v| v.ids.iter().zip(&v.weights).map(value).collect()).collect();
    Ok(call.answer(EmbedSparseResponse(all), Usage { tokens: tokens.iter().sum(), characters }))
}

/// The cosine of one text with each of others.
#[utoipa::path(post, path = "/similarity", request_body = SimilarityRequest,
    responses((status = 200, description = "A cosine a text", body = SimilarityResponse)))]
async fn similarity(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<SimilarityRequest>,
) -> Result<Answer<SimilarityResponse>, Fault> {
    similarity_of(&app, &trail, body).await
}

pub(crate) async fn similarity_of(
    app: &Arc<App>,
    trail: &Trail,
    body: SimilarityRequest,
) -> Result<Answer<SimilarityResponse>, Fault> {
    app.check_batch(body.inputs.sentences.len(), "sentences")?;
    let parameters = body.parameters.unwrap_or_default();
    right(parameters.truncation_direction)?;
    let how = app.how(parameters.truncate, parameters.prompt_name);
    let call = app.call("similarity", trail, body.model.as_deref(), Want::Embed)?;
    let all = std::iter::once(body.inputs.source_sentence).chain(body.inputs.sentences);
    let items: Vec<Item> = all.map(Item::Text).collect();
    let made = call.run(move |served, caller| embedding::embed(served, caller, items, &how)).await?;
    let cosines = match made.rows.split_first() {
        Some((source, others)) => others.iter().map(|other| dot(source, other)).collect(),
        None => Vec::new(),
    };
    Ok(call.answer(SimilarityResponse(cosines), made.usage))
}

/// Whether a body compares a text with others.
pub(crate) fn is_similarity(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Body {
        #[serde(rename = "inputs")]
        _inputs: Inside,
    }
    #[derive(Deserialize)]
    struct Inside {
        #[serde(rename = "source_sentence")]
        _source: IgnoredAny,
    }
    serde_json::from_slice::<Body>(bytes).is_ok()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

pub(super) fn characters(texts: &[String]) -> usize {
    texts.iter().map(|t| t.chars().count()).sum()
}

/// Texts alone.
pub(super) fn texts(inputs: Inputs) -> Result<Vec<String>, Fault> {
    let text = |item| match item {
        Item::Text(text) => Ok(text),
        Item::Ids(_) | Item::Image(_) => Err(Fault::invalid("only texts are read here").at("inputs")),
    };
    inputs.items.into_iter().map(text).collect()
}

/// The engine cuts at the end of a text.
pub(super) fn right(direction: TruncationDirection) -> Result<(), Fault> {
    match direction {
        TruncationDirection::Right => Ok(()),
        TruncationDirection::Left => {
            Err(Fault::invalid("texts are cut at their end here; send `right`").at("truncation_direction"))
        }
    }
}
