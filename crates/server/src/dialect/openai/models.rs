//! The list of models.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::model_manager::{ModelStatus, ModelSummary};
use axum::Json;
use axum::extract::{Path, State};
use sconce_api::openai::models::{Model, ModelList};
use std::sync::Arc;
use std::time::SystemTime;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(one))
}

/// Models that accept requests, including unloaded ones that the next request loads again.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "The models", body = ModelList)))]
async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(model_list(&app))
}

pub(crate) fn model_list(app: &App) -> ModelList {
    let data = app.models.list().iter().filter(|m| is_available(m)).map(api_model).collect();
    ModelList { object: "list".into(), data }
}

/// One model. Names may contain slashes: the rest of the path is the name, escaped or not.
#[utoipa::path(get, path = "/v1/models/{*id}", params(("id" = String, Path, description = "The model's name")),
    responses((status = 200, description = "The model", body = Model)))]
async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, Fault> {
    let found = app.models.list().into_iter().find(|m| is_available(m) && m.spec.is_called(&id));
    let absent = || Fault::new(FaultKind::NoModel, format!("there is no model `{id}` on this server")).at("model");
    found.map(|m| Json(api_model(&m))).ok_or_else(absent)
}

fn is_available(summary: &ModelSummary) -> bool {
    matches!(summary.status, ModelStatus::Ready | ModelStatus::Unloaded | ModelStatus::ReloadFailed(_))
}

fn api_model(summary: &ModelSummary) -> Model {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let created = summary.served.as_ref().map_or_else(now, |served| served.created_seconds());
    Model { id: summary.spec.id.clone(), object: "model".into(), created, owned_by: "sconce".into() }
}
