//! Health checks and metrics, which belong to no API.

use crate::app::App;
use crate::error::Fault;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(ping)).routes(routes!(metrics))
}

/// Health check: whether every model is loaded.
#[utoipa::path(get, path = "/health", responses((status = 200, description = "Every model is loaded")))]
async fn health(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    match &app.member {
        Some(member) => Ok(member.health(&app)),
        None => app.models.ready().map(IntoResponse::into_response),
    }
}

/// The same as `/health`.
#[utoipa::path(get, path = "/ping", responses((status = 200, description = "Every model is loaded")))]
async fn ping(State(app): State<Arc<App>>) -> Result<(), Fault> {
    app.models.ready()
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "The metrics", body = String)))]
async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    if let Some(member) = &app.member {
        member.refresh(&app);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.text(&app))
}
