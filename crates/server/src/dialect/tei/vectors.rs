//! Vectors.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::call::Usage;
use crate::embedding::{self, How};
use crate::error::Fault;
use crate::served::Want;
use crate::trail::Trail;
use axum::extract::State;
use sconce_api::input::{Inputs, Item};
use sconce_api::tei::{
    EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseResponse, SimilarityRequest,
    SimilarityResponse, SparseValue,
};
use sconce_engine::{Loaded, TaskModel};

use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::HashMap;
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
    trail: &Arc<Trail>,
    body: EmbedRequest,
) -> Result<Answer<EmbedResponse>, Fault> {
    let items = body.inputs.items;
    app.check_batch(items.len(), "inputs")?;
    let how = How {
        truncate: app.truncates(body.truncate, body.truncation_direction),
        prompted: body.prompt_name.is_some(),
        prompt: app.prompt(body.prompt_name),
        normalize: body.normalize,
        dimensions: body.dimensions,
        param: "inputs",
    };
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
    trail: &Arc<Trail>,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedAllResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let truncate = app.truncates(body.truncate, body.truncation_direction);
    let (prompted, prompt) = (body.prompt_name.is_some(), app.prompt(body.prompt_name));
    let call = app.call("embed_all", trail, body.model.as_deref(), Want::EmbedAll)?;
    let (items, characters) = read(body.inputs).map_err(|fault| call.failed(fault))?;
    let made = call
        .run(move |served, caller| match &served.model {
            TaskModel::Embed(embedder) => {
                let embedder = embedder.with_context(caller).with_truncation(truncate);
                Ok(embedder.embed_all(&embedding::inputs(&items), &prompt)?)
            }
            TaskModel::Multi(multi) => {
                embedding::unprompted(prompted)?;
                let multi = multi.with_context(caller).with_truncation(truncate);
                Ok(multi.documents(&embedding::texts(&items, "inputs")?)?)
            }
            TaskModel::M3(m3) => {
                embedding::unprompted(prompted)?;
                let m3 = m3.with_context(caller).with_truncation(truncate);
                Ok(m3.embed_inputs(&embedding::inputs(&items))?.map(|three| three.multi))
            }
            _ => Err(served.unfit(Want::EmbedAll)),
        })
        .await?;
    let all = made.results.iter().map(|text| text.rows().map(<[f32]>::to_vec).collect()).collect();
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
    trail: &Arc<Trail>,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedSparseResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let truncate = app.truncates(body.truncate, body.truncation_direction);
    embedding::unprompted(body.prompt_name.is_some())?;
    let call = app.call("embed_sparse", trail, body.model.as_deref(), Want::Sparse)?;
    let (items, characters) = read(body.inputs).map_err(|fault| call.failed(fault))?;
    let made = call
        .run(move |served, caller| match &served.model {
            TaskModel::Sparse(sparse) => {
                let sparse = sparse.with_context(caller).with_truncation(truncate);
                Ok(sparse.embed_inputs(&embedding::inputs(&items))?)
            }
            TaskModel::M3(m3) => {
                let m3 = m3.with_context(caller).with_truncation(truncate);
                Ok(m3.embed_inputs(&embedding::inputs(&items))?.map(|three| three.sparse))
            }
            _ => Err(served.unfit(Want::Sparse)),
        })
        .await?;
    let value = |(id, weight): (&u32, &f32)| SparseValue { index: *id, value: *weight };
    let all = made.results.iter().map(|v| v.ids.iter().zip(&v.weights).map(value).collect()).collect();
    Ok(call.answer(EmbedSparseResponse(all), Usage { tokens: made.tokens.iter().sum(), characters }))
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
    trail: &Arc<Trail>,
    body: SimilarityRequest,
) -> Result<Answer<SimilarityResponse>, Fault> {
    app.check_batch(body.inputs.sentences.len(), "sentences")?;
    let parameters = body.parameters.unwrap_or_default();
    let how = How {
        truncate: app.truncates(parameters.truncate, parameters.truncation_direction),
        prompted: parameters.prompt_name.is_some(),
        prompt: app.prompt(parameters.prompt_name),
        normalize: true,
        dimensions: None,
        param: "inputs",
    };
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
    // A map, not a structure, which serde would read from a list as well.
    #[derive(Deserialize)]
    struct Body {
        inputs: HashMap<String, IgnoredAny>,
    }
    serde_json::from_slice::<Body>(bytes).is_ok_and(|body| body.inputs.contains_key("source_sentence"))
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// Texts and tokens, and how many characters they have.
fn read(inputs: Inputs) -> Result<(Vec<Item>, usize), Fault> {
    match inputs.items.iter().any(|item| matches!(item, Item::Image(_))) {
        true => Err(Fault::invalid("only texts and token ids are read here").at("inputs")),
        false => Ok((embedding::characters(&inputs.items), inputs.items)).map(|(n, items)| (items, n)),
    }
}
