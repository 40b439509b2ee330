//! The models of the server, those in memory, and the version.

use super::facts::Facts;
use super::{API_VERSION, tagged};
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::model_manager::{ModelStatus, ModelSummary};
use axum::Json;
use axum::extract::State;
use sconce_api::ollama::{Listed, Listing, Running, RunningList, Version};
use sconce_api::time::rfc3339;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// When a model that is never unloaded is said to be: clients want a time.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(tags)).routes(routes!(ps)).routes(routes!(version))
}

/// The version of Ollama whose API this is.
#[utoipa::path(get, path = "/api/version", responses((status = 200, description = "The versions", body = Version)))]
async fn version() -> Json<Version> {
    Json(Version { version: API_VERSION.into(), sconce: env!("CARGO_PKG_VERSION").into() })
}

/// The models that requests may name.
#[utoipa::path(get, path = "/api/tags", responses((status = 200, description = "The models", body = Listing)))]
async fn tags(State(app): State<Arc<App>>) -> Result<Json<Listing>, Fault> {
    let models = describe(&app, |summary| !matches!(summary.status, ModelStatus::Failed(_))).await?;
    let one = |(summary, facts): (ModelSummary, Arc<Facts>)| Listed {
        name: tagged(&summary.spec.id),
        model: tagged(&summary.spec.id),
        modified_at: rfc3339(facts.modified),
        size: facts.size,
        digest: facts.digest.clone(),
        details: facts.details.clone(),
    };
    Ok(Json(Listing { models: models.into_iter().map(one).collect() }))
}

/// The models in memory, and when they leave it.
#[utoipa::path(get, path = "/api/ps", responses((status = 200, description = "The models", body = RunningList)))]
async fn ps(State(app): State<Arc<App>>) -> Result<Json<RunningList>, Fault> {
    let models = describe(&app, |summary| summary.served.is_some()).await?;
    let limit = app.config.idle_timeout;
    let one = |(summary, facts): (ModelSummary, Arc<Facts>)| {
        let served = summary.served.as_ref()?;
        let plan = served.model.loaded().plan();
        Some(Running {
            name: tagged(&summary.spec.id),
            model: tagged(&summary.spec.id),
            size: served.bytes(),
            digest: facts.digest.clone(),
            details: facts.details.clone(),
            expires_at: rfc3339(expires_at(&summary, limit)),
            size_vram: if plan.is_on_gpu() { served.bytes() } else { 0 },
            context_length: plan.max_tokens,
        })
    };
    Ok(Json(RunningList { models: models.into_iter().filter_map(one).collect() }))
}

/// When a model is unloaded unless a request comes.
fn expires_at(summary: &ModelSummary, limit: Option<Duration>) -> SystemTime {
    let now = SystemTime::now();
    let left = match summary.idle_limit(limit) {
        None => NEVER,
        Some(limit) if summary.leases > 0 => limit,
        Some(limit) => limit.saturating_sub(summary.used.elapsed()),
    };
    now.checked_add(left.min(NEVER)).unwrap_or(now)
}

/// The models that `choose` takes, with the facts of their files.
pub(super) async fn describe(
    app: &Arc<App>,
    choose: impl Fn(&ModelSummary) -> bool + Send + 'static,
) -> Result<Vec<(ModelSummary, Arc<Facts>)>, Fault> {
    let app = app.clone();
    let described = tokio::task::spawn_blocking(move || {
        let models = app.models.list().into_iter().filter(|summary| choose(summary));
        let with_facts = |summary: ModelSummary| {
            let facts = app.facts.of(&summary).unwrap_or_default();
            (summary, facts)
        };
        models.map(with_facts).collect()
    });
    described.await.map_err(|e| {
        tracing::error!("reading the facts of models panicked: {e}");
        Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed")
    })
}
