//! Labels, in vLLM's shape.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::call::Usage;
use crate::dialect::tei::{Labelling, classify};
use crate::error::Fault;
use crate::served::Want;
use crate::trail::fresh_id;
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

/// The likeliest label of each text, and the shares of all.
#[utoipa::path(post, path = "/v1/classify", request_body = ClassifyRequest,
    responses((status = 200, description = "The labels of each text", body = ClassifyResponse)))]
async fn labels(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<ClassifyRequest>,
) -> Result<Answer<ClassifyResponse>, Fault> {
    let texts = match body.input {
        ClassifyInput::One(text) => vec![text],
        ClassifyInput::Several(texts) => texts,
    };
    app.check_batch(texts.len(), "input")?;
    let how = Labelling { raw: false, truncate: app.truncates(body.truncate, TruncationDirection::Right) };
    let characters = texts.iter().map(|t| t.chars().count()).sum();
    let call = app.call("v1/classify", &trail, body.model.as_deref(), Want::Classify)?;
    let (data, tokens) = call
        .run(move |served, caller| {
            let given: Vec<TextOrPair> = texts.into_iter().map(|text| TextOrPair { text, pair: None }).collect();
            let all = classify(&served.model, caller, &given, how).map_err(|fault| fault.at("input"))?;
            let tokens = all.tokens.iter().sum();
            let names: &[String] = match &served.model {
                TaskModel::Classify(classifier) => classifier.labels(),
                _ => &[],
            };
            let told = all.results.into_iter().enumerate().map(|(index, labels)| {
                let share = |name: &String| labels.iter().find(|l| l.label == *name).map_or(0.0, |l| l.score);
                let probs: Vec<f32> = names.iter().map(share).collect();
                let label = labels.first().map(|l| l.label.clone()).unwrap_or_default();
                Classification { index, label, num_classes: probs.len(), probs }
            });
            Ok((told.collect::<Vec<_>>(), tokens))
        })
        .await?;
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let told = ClassifyResponse {
        id: format!("classify-{}", fresh_id()),
        object: "list".into(),
        created,
        model: call.served().id.clone(),
        data,
        usage: ClassifyUsage { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 },
    };
    Ok(call.answer(told, Usage { tokens, characters }))
}
