//! `GET /info`: the models, their devices, and the op counts by rung.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::model_manager::ModelSummary;
use axum::Json;
use axum::extract::State;
use sconce_api::tei::{Info, ModelInfo, OpCount};
use sconce_engine::hub::Origin;
use sconce_engine::{GraphPlan, Plan, Pooling, TaskModel};
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(info))
}

/// The first model in TEI's format, and all models with device, dtype and op counts by rung.
#[utoipa::path(get, path = "/info", responses((status = 200, description = "About the server", body = Info)))]
async fn info(State(app): State<Arc<App>>) -> Result<Json<Info>, Fault> {
    let all = app.models.list();
    let Some(first) = all.iter().find(|m| m.served.is_some()).or(all.first()) else {
        return Err(Fault::new(FaultKind::NoModel, "this server has no models; load one with POST /v1/models/load"));
    };
    let plan = first.served.as_ref().map(|s| s.model.loaded().plan());
    let batch_tokens = plan.map_or(0, |p| p.batch_tokens);
    Ok(Json(Info {
        model_id: first.spec.id.clone(),
        model_sha: first.served.as_ref().and_then(|s| commit(&s.model.loaded().files().origin)),
        model_dtype: plan.map(|p| p.format()).unwrap_or_default(),
        model_type: first.served.as_ref().map_or(Value::Null, |s| model_type(&s.model, app.config.pooling.as_ref())),
        max_concurrent_requests: app.config.max_concurrent,
        max_input_length: plan.map_or(0, |p| p.max_tokens),
        max_batch_tokens: batch_tokens,
        max_batch_requests: plan.map(|p| p.most_sequences).filter(|n| *n < usize::MAX),
        max_client_batch_size: app.config.max_client_batch,
        auto_truncate: app.config.auto_truncate,
        tokenization_workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
        version: env!("CARGO_PKG_VERSION").into(),
        sha: None,
        docker_label: None,
        models: all.iter().map(model_info).collect(),
    }))
}

/// The commit of a model from the hub.
fn commit(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Hub { commit, .. } | Origin::HubCache { commit, .. } => Some(commit.clone()),
        _ => None,
    }
}

/// The model type in TEI's format.
fn model_type(task: &TaskModel, default_pooling: Option<&Pooling>) -> Value {
    let labels = |names: &[String]| {
        let by_id: serde_json::Map<String, Value> =
            names.iter().enumerate().map(|(i, n)| (i.to_string(), json!(n))).collect();
        let by_name: serde_json::Map<String, Value> =
            names.iter().enumerate().map(|(i, n)| (n.clone(), json!(i))).collect();
        json!({"id2label": by_id, "label2id": by_name})
    };
    match task {
        TaskModel::Classify(classifier) => json!({"classifier": labels(classifier.labels())}),
        TaskModel::Rerank(_) => json!({"reranker": labels(&["LABEL_0".to_string()])}),
        TaskModel::Sparse(_) => json!({"embedding": {"pooling": "splade"}}),
        TaskModel::Generate(_) | TaskModel::Seq2Seq(_) => json!({"generator": {}}),
        TaskModel::Tag(tagger) => json!({"tagger": labels(tagger.labels())}),
        // Each request names the labels.
        TaskModel::Gliner(_) => json!({"tagger": labels(&[])}),
        TaskModel::Embed(embedder) => {
            let own = default_pooling.map_or(embedder.poolings(), std::slice::from_ref);
            let poolings: Vec<&str> = own.iter().map(|p| pooling(*p)).collect();
            json!({"embedding": {"pooling": poolings.join("+")}})
        }
        TaskModel::M3(_) => json!({"embedding": {"pooling": "cls"}}),
        TaskModel::Multi(_) | TaskModel::Clip(_) => json!({"embedding": {}}),
    }
}

/// TEI's name of a pooling, if it has one.
fn pooling(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Cls => "cls",
        Pooling::Mean => "mean",
        Pooling::Max => "max",
        Pooling::MeanSqrtLen => "mean_sqrt_len",
        Pooling::WeightedMean => "weighted_mean",
        Pooling::LastToken => "last_token",
    }
}

fn model_info(summary: &ModelSummary) -> ModelInfo {
    let loaded = summary.served.as_ref().map(|s| s.model.loaded());
    let plan = loaded.map(|m| m.plan());
    ModelInfo {
        id: summary.spec.id.clone(),
        state: summary.status.name().into(),
        task: summary.served.as_ref().map(|s| s.task.to_string()),
        device: plan.map(Plan::runs_on),
        engine: plan.map(|p| p.graph.as_ref().map_or_else(|| "native".into(), GraphPlan::engine)),
        dtype: plan.map(|p| p.format()),
        dtype_reason: plan.map(|p| p.dtype_reason.clone()),
        source: loaded.map(|m| m.files().origin.to_string()),
        max_input_length: plan.map(|p| p.max_tokens),
        dimension: plan.map(|p| p.dimension),
        planned_bytes: summary.served.as_ref().map(|s| s.bytes()),
        peak_bytes: loaded.map(|m| m.peak_bytes()),
        ran: loaded.map(|m| m.op_calls()).unwrap_or_default().into_iter().map(op_count).collect(),
    }
}

/// A count as the API has it.
pub(crate) fn op_count(ran: sconce_engine::OpCalls) -> OpCount {
    OpCount { op: ran.op, device: ran.device, dtype: ran.dtype, rung: ran.rung, calls: ran.calls }
}
