//! `POST /pooling`: embeddings of inputs or of their tokens, or probabilities of classes.

use super::{truncation, usage};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::openai::now;
use crate::embedding::{self, EmbedParams, TokenParams};
use crate::error::Fault;
use crate::http_context::fresh_id;
use crate::json_body::JsonBody;
use crate::served_model::{RequestKind, ServedModel};
use axum::extract::State;
use sconce_api::input::Item;
use sconce_api::openai::embeddings::EncodingFormat;
use sconce_api::vllm::{Pooled, PooledData, PoolingRequest, PoolingResponse, PoolingTask};
use sconce_engine::{Loaded, RequestContext, Scores, TaskModel, TextOrPair};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(pooling))
}

/// What a model makes of inputs: embeddings, embeddings of tokens, or probabilities of classes.
#[utoipa::path(post, path = "/pooling", request_body = PoolingRequest,
    responses((status = 200, description = "A result per input", body = PoolingResponse)))]
async fn pooling(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<PoolingRequest>,
) -> Result<Answer<PoolingResponse>, Fault> {
    check(&body)?;
    let items = body.input.items;
    app.check_batch(items.len(), "input")?;
    if items.iter().any(|item| matches!(item, Item::Image(_))) {
        return Err(Fault::invalid("this path accepts texts and token ids, no images").at("input"));
    }
    let (truncate, max_tokens) = truncation(&app, body.truncate_prompt_tokens, body.truncation_side)?;
    let params = EmbedParams {
        truncate,
        prompt: app.prompt(None),
        prompt_given: false,
        normalize: body.use_activation.unwrap_or(true),
        dimensions: body.dimensions,
        max_tokens,
        pooling: app.config.pooling,
        pooling_given: false,
        param: "input",
    };
    let kind = match (body.task, &body.model) {
        (None, _) | (_, Some(_)) => RequestKind::Pool,
        (Some(PoolingTask::Embed), None) => RequestKind::Embed,
        (Some(PoolingTask::Classify), None) => RequestKind::Classify,
        (Some(PoolingTask::TokenEmbed), None) => RequestKind::EmbedAll,
    };
    let call = app.call("pooling", &context, body.model.as_deref(), kind)?;
    let characters = embedding::characters(&items);
    let (task, format) = (body.task, body.encoding_format.unwrap_or_default());
    let (rows, tokens) = call.run(move |served, caller| pool(served, caller, items, (task, &params))).await?;
    let pooled = |(index, data)| Pooled { index, object: "pooling".into(), data: encoded(data, format) };
    let response = PoolingResponse {
        id: format!("pooling-{}", fresh_id()),
        object: "list".into(),
        created: now(),
        model: call.served().id.clone(),
        data: rows.into_iter().enumerate().map(pooled).collect(),
        usage: usage(tokens),
    };
    Ok(call.answer(response, Usage { tokens, characters }))
}

/// Refuses values that this server does not support.
fn check(body: &PoolingRequest) -> Result<(), Fault> {
    if body.embed_dtype.as_deref().is_some_and(|dtype| dtype != "float32") {
        return Err(Fault::invalid("`embed_dtype` must be float32, the only format here").at("embed_dtype"));
    }
    if body.endianness.as_deref().is_some_and(|order| order != "native" && order != "little") {
        return Err(Fault::invalid("`endianness` must be little, the only byte order here").at("endianness"));
    }
    if body.add_special_tokens == Some(false) {
        let what = "`add_special_tokens` must be true: models are trained with their special tokens; send token ids \
                    to choose them yourself";
        return Err(Fault::invalid(what).at("add_special_tokens"));
    }
    Ok(())
}

/// Runs the task, or what the model is for, and returns the results and the tokens read.
fn pool(
    served: &ServedModel,
    caller: &RequestContext,
    items: Vec<Item>,
    (task, params): (Option<PoolingTask>, &EmbedParams),
) -> Result<(Vec<PooledData>, usize), Fault> {
    let task = task.unwrap_or(match &served.model {
        TaskModel::Classify(_) => PoolingTask::Classify,
        TaskModel::Multi(_) => PoolingTask::TokenEmbed,
        _ => PoolingTask::Embed,
    });
    if task != PoolingTask::Embed && params.dimensions.is_some() {
        return Err(Fault::invalid("`dimensions` is for the task embed alone; leave it out").at("dimensions"));
    }
    match task {
        PoolingTask::Embed => {
            let output = embedding::embed(served, caller, items, params)?;
            Ok((output.rows.into_iter().map(PooledData::Vector).collect(), output.usage.tokens))
        }
        PoolingTask::TokenEmbed => {
            let token_params = TokenParams {
                truncate: params.truncate,
                prompt: params.prompt.clone(),
                prompt_given: false,
                max_tokens: params.max_tokens,
                param: params.param,
            };
            let output = embedding::embed_tokens(served, caller, &items, &token_params)?;
            // vLLM normalizes the vectors of tokens too.
            let row = |row: &[f32]| if params.normalize { embedding::l2_normalized(row) } else { row.to_vec() };
            let rows = output.results.iter().map(|text| PooledData::Tokens(text.rows().map(row).collect()));
            Ok((rows.collect(), output.tokens.iter().sum()))
        }
        PoolingTask::Classify => {
            let TaskModel::Classify(classifier) = &served.model else {
                return Err(served.unsupported(RequestKind::Classify));
            };
            let texts: Vec<TextOrPair<'_>> = embedding::texts(&items, params.param)?
                .into_iter()
                .map(|text| TextOrPair { text, pair: None })
                .collect();
            let classifier =
                classifier.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
            let output = classifier.logits(&texts)?;
            let scores = if params.normalize { classifier.scores() } else { Scores::Raw };
            let rows = output.results.iter().map(|logits| PooledData::Vector(scores.apply(logits)));
            Ok((rows.collect(), output.tokens.iter().sum()))
        }
    }
}

fn encoded(data: PooledData, format: EncodingFormat) -> PooledData {
    match (format, data) {
        (EncodingFormat::Float, data) => data,
        (EncodingFormat::Base64, PooledData::Vector(row)) => PooledData::Base64(embedding::base64_of(&row)),
        (EncodingFormat::Base64, PooledData::Tokens(rows)) => PooledData::Base64(embedding::base64_of(&rows.concat())),
        (EncodingFormat::Base64, data @ PooledData::Base64(_)) => data,
    }
}
