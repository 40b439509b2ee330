//! Text classification in vLLM's format.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::tei::{ClassifyParams, classify};
use crate::error::Fault;
use crate::http_context::fresh_id;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::extract::State;
use sconce_api::openai::classify::{Classification, ClassifyInput, ClassifyRequest, ClassifyResponse, ClassifyUsage};
use sconce_api::tei::{TextOrPair, TruncationDirection};
use sconce_engine::TaskModel;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(labels))
}

/// Classifies texts: the most likely label, and the probabilities of all labels.
#[utoipa::path(post, path = "/v1/classify", request_body = ClassifyRequest,
    responses((status = 200, description = "The labels of each text", body = ClassifyResponse)))]
async fn labels(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ClassifyRequest>,
) -> Result<Answer<ClassifyResponse>, Fault> {
    let texts = match body.input {
        ClassifyInput::One(text) => vec![text],
        ClassifyInput::Several(texts) => texts,
    };
    app.check_batch(texts.len(), "input")?;
    let params = ClassifyParams { raw: false, truncate: app.truncation(body.truncate, TruncationDirection::Right) };
    let characters = texts.iter().map(|t| t.chars().count()).sum();
    let call = app.call("v1/classify", &context, body.model.as_deref(), RequestKind::Classify)?;
    let (data, tokens) = call
        .run(move |served, caller| {
            let inputs: Vec<TextOrPair> = texts.into_iter().map(|text| TextOrPair { text, pair: None }).collect();
            let all = classify(&served.model, caller, &inputs, params).map_err(|fault| fault.at("input"))?;
            let tokens = all.tokens.iter().sum();
            let names: &[String] = match &served.model {
                TaskModel::Classify(classifier) => classifier.labels(),
                _ => &[],
            };
            let response = all.results.into_iter().enumerate().map(|(index, labels)| {
                let probability = |name: &String| labels.iter().find(|l| l.label == *name).map_or(0.0, |l| l.score);
                let probs: Vec<f32> = names.iter().map(probability).collect();
                let label = labels.first().map(|l| l.label.clone()).unwrap_or_default();
                Classification { index, label, num_classes: probs.len(), probs }
            });
            Ok((response.collect::<Vec<_>>(), tokens))
        })
        .await?;
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let response = ClassifyResponse {
        id: format!("classify-{}", fresh_id()),
        object: "list".into(),
        created,
        model: call.served().id.clone(),
        data,
        usage: ClassifyUsage { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 },
    };
    Ok(call.answer(response, Usage { tokens, characters }))
}
