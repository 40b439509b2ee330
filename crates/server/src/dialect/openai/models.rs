//! Which models there are.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::house::{Shown, Standing};
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

/// Models that can be asked, be it that the next request brings them back.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "The models", body = ModelList)))]
async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let data = app.house.list().iter().filter(|m| is_there(m)).map(told).collect();
    Json(ModelList { object: "list".into(), data })
}

/// One of them. Names have slashes: the rest of the path is the name, escaped or not.
#[utoipa::path(get, path = "/v1/models/{*id}", params(("id" = String, Path, description = "Its name")),
    responses((status = 200, description = "The model", body = Model)))]
async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, Fault> {
    let found = app.house.list().into_iter().find(|m| is_there(m) && m.spec.is_called(&id));
    let absent = || Fault::new(FaultKind::NoModel, format!("there is no model `{id}` here")).at("model");
    found.map(|m| Json(told(&m))).ok_or_else(absent)
}

fn is_there(shown: &Shown) -> bool {
    matches!(shown.standing, Standing::Ready | Standing::Resting | Standing::Troubled(_))
}

fn told(shown: &Shown) -> Model {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let created = shown.served.as_ref().map_or_else(now, |served| served.created_seconds());
    Model { id: shown.spec.id.clone(), object: "model".into(), created, owned_by: "sconce".into() }
}
