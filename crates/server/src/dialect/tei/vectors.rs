//! Dense, sparse and multi-vector embeddings, and similarity.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::embedding::{self, EmbedParams, TokenParams};
use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::extract::State;
use sconce_api::input::{Inputs, Item};
use sconce_api::tei::{
    EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseResponse, Pooling, SimilarityRequest,
    SimilarityResponse, SparseValue,
};
use sconce_engine::{Loaded, Route, SparseEncoder, TaskModel};

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

/// Embeds inputs: one embedding per input.
#[utoipa::path(post, path = "/embed", request_body = EmbedRequest,
    responses((status = 200, description = "One embedding per input", body = EmbedResponse)))]
async fn embed(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbedRequest>,
) -> Result<Answer<EmbedResponse>, Fault> {
    embed_of(&app, &context, body).await
}

pub(crate) async fn embed_of(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: EmbedRequest,
) -> Result<Answer<EmbedResponse>, Fault> {
    if body.pooling == Some(Pooling::None) {
        return embed_tokens(app, context, body).await;
    }
    let items = body.inputs.items;
    if items.iter().any(|item| matches!(item, Item::Mixed(_))) {
        let what = "a list has texts and token ids; send them in separate requests";
        return Err(Fault::invalid(what).at("inputs"));
    }
    app.check_batch(items.len(), "inputs")?;
    let params = EmbedParams {
        truncate: app.truncation(body.truncate, body.truncation_direction),
        prompt_given: body.prompt_name.is_some(),
        prompt: app.prompt(body.prompt_name),
        normalize: body.normalize,
        dimensions: body.dimensions,
        max_tokens: None,
        pooling: app.pooling(body.pooling)?,
        pooling_given: body.pooling.is_some(),
        param: "inputs",
    };
    let call = app.call("embed", context, body.model.as_deref(), embedding::request_kind(&items))?;
    let output = call.run(move |served, caller| embedding::embed(served, caller, items, &params)).await?;
    Ok(call.answer(EmbedResponse::Pooled(output.rows), output.usage))
}

/// The embeddings of an input's tokens, without pooling.
async fn embed_tokens(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: EmbedRequest,
) -> Result<Answer<EmbedResponse>, Fault> {
    if body.dimensions.is_some() {
        let what = "`dimensions` truncates pooled embeddings, and `pooling` is none: leave one of them out";
        return Err(Fault::invalid(what).at("dimensions"));
    }
    let body = EmbedAllRequest {
        inputs: body.inputs,
        model: body.model,
        truncate: body.truncate,
        truncation_direction: body.truncation_direction,
        prompt_name: body.prompt_name,
    };
    Ok(embed_all_of(app, context, body).await?.map(EmbedResponse::Tokens))
}

/// Multi-vector embeddings: one embedding per token of each input.
#[utoipa::path(post, path = "/embed_all", request_body = EmbedAllRequest,
    responses((status = 200, description = "One embedding per token of each input", body = EmbedAllResponse)))]
async fn embed_all(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbedAllRequest>,
) -> Result<Answer<EmbedAllResponse>, Fault> {
    embed_all_of(&app, &context, body).await
}

pub(crate) async fn embed_all_of(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedAllResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let params = TokenParams {
        truncate: app.truncation(body.truncate, body.truncation_direction),
        prompt_given: body.prompt_name.is_some(),
        prompt: app.prompt(body.prompt_name),
        max_tokens: None,
        param: "inputs",
    };
    let call = app.call("embed_all", context, body.model.as_deref(), RequestKind::EmbedAll)?;
    let (items, characters) = text_items(body.inputs).map_err(|fault| call.failed(fault))?;
    let output = call.run(move |served, caller| embedding::embed_tokens(served, caller, &items, &params)).await?;
    let all = output.results.iter().map(|text| text.rows().map(<[f32]>::to_vec).collect()).collect();
    Ok(call.answer(EmbedAllResponse(all), Usage { tokens: output.tokens.iter().sum(), characters }))
}

/// Sparse embeddings: weights over the vocabulary.
#[utoipa::path(post, path = "/embed_sparse", request_body = EmbedAllRequest,
    responses((status = 200, description = "The sparse embedding of each input", body = EmbedSparseResponse)))]
async fn embed_sparse(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbedAllRequest>,
) -> Result<Answer<EmbedSparseResponse>, Fault> {
    embed_sparse_of(&app, &context, body).await
}

pub(crate) async fn embed_sparse_of(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: EmbedAllRequest,
) -> Result<Answer<EmbedSparseResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let truncate = app.truncation(body.truncate, body.truncation_direction);
    let prompt_name = body.prompt_name;
    let call = app.call("embed_sparse", context, body.model.as_deref(), RequestKind::Sparse)?;
    let (items, characters) = text_items(body.inputs).map_err(|fault| call.failed(fault))?;
    let output = call
        .run(move |served, caller| match &served.model {
            TaskModel::Sparse(sparse) => {
                let sparse = sparse.with_context(caller).with_truncation(truncate);
                let route = sparse_route(&sparse, prompt_name.as_deref())?;
                Ok(sparse.embed_inputs_as(&embedding::inputs(&items), route)?)
            }
            TaskModel::M3(m3) => {
                embedding::refuse_prompt(prompt_name.is_some())?;
                let m3 = m3.with_context(caller).with_truncation(truncate);
                Ok(m3.embed_inputs(&embedding::inputs(&items))?.map(|outputs| outputs.sparse))
            }
            _ => Err(served.unsupported(RequestKind::Sparse)),
        })
        .await?;
    let value = |(id, weight): (&u32, &f32)| SparseValue { index: *id, value: *weight };
    let all = output.results.iter().map(|v| v.ids.iter().zip(&v.weights).map(value).collect()).collect();
    Ok(call.answer(EmbedSparseResponse(all), Usage { tokens: output.tokens.iter().sum(), characters }))
}

/// The route that a request names as its prompt, of a model that encodes queries in another way than
/// documents.
fn sparse_route(sparse: &SparseEncoder, prompt_name: Option<&str>) -> Result<Route, Fault> {
    match prompt_name {
        None => Ok(Route::Default),
        Some(_) if !sparse.has_routes() => embedding::refuse_prompt(true).map(|()| Route::Default),
        Some("query") => Ok(Route::Query),
        Some("document") => Ok(Route::Document),
        Some(other) => {
            let what = format!("`prompt_name` is `{other}`; this model has `query` and `document`");
            Err(Fault::invalid(what).at("prompt_name"))
        }
    }
}

/// Cosine similarity of one text with each of several others.
#[utoipa::path(post, path = "/similarity", request_body = SimilarityRequest,
    responses((status = 200, description = "The cosine similarity with each text", body = SimilarityResponse)))]
async fn similarity(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<SimilarityRequest>,
) -> Result<Answer<SimilarityResponse>, Fault> {
    similarity_of(&app, &context, body).await
}

pub(crate) async fn similarity_of(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: SimilarityRequest,
) -> Result<Answer<SimilarityResponse>, Fault> {
    app.check_batch(body.inputs.sentences.len(), "sentences")?;
    let parameters = body.parameters.unwrap_or_default();
    let params = EmbedParams {
        truncate: app.truncation(parameters.truncate, parameters.truncation_direction),
        prompt_given: parameters.prompt_name.is_some(),
        prompt: app.prompt(parameters.prompt_name),
        normalize: true,
        dimensions: None,
        max_tokens: None,
        pooling: app.config.pooling,
        pooling_given: false,
        param: "inputs",
    };
    let call = app.call("similarity", context, body.model.as_deref(), RequestKind::Embed)?;
    let all = std::iter::once(body.inputs.source_sentence).chain(body.inputs.sentences);
    let items: Vec<Item> = all.map(Item::Text).collect();
    let output = call.run(move |served, caller| embedding::embed(served, caller, items, &params)).await?;
    let cosines = match output.rows.split_first() {
        Some((source, others)) => others.iter().map(|other| embedding::dot(source, other)).collect(),
        None => Vec::new(),
    };
    Ok(call.answer(SimilarityResponse(cosines), output.usage))
}

/// Whether a body is a similarity request.
pub(crate) fn is_similarity(bytes: &[u8]) -> bool {
    // A map, because serde also reads a struct from a list.
    #[derive(Deserialize)]
    struct Body {
        inputs: HashMap<String, IgnoredAny>,
    }
    serde_json::from_slice::<Body>(bytes).is_ok_and(|body| body.inputs.contains_key("source_sentence"))
}

/// Texts and token ids, and their number of characters.
fn text_items(inputs: Inputs) -> Result<(Vec<Item>, usize), Fault> {
    match inputs.items.iter().any(|item| matches!(item, Item::Image(_) | Item::Mixed(_))) {
        true => Err(Fault::invalid("an input of this path is a text or a list of token ids").at("inputs")),
        false => Ok((embedding::characters(&inputs.items), inputs.items)).map(|(n, items)| (items, n)),
    }
}
