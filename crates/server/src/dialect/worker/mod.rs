//! A worker of a pool: a server with one model, named jobs, and a callback and heartbeat to the
//! process that started it.

mod execute;
mod health;
mod heartbeat;
mod jobs;

pub(crate) use heartbeat::report;

use super::admin::guard;
use crate::app::App;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::model_manager::ModelStatus;
use crate::sse;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use health::{ModelFacts, WorkerMetrics};
use jobs::Jobs;
use prometheus::Registry;
use sconce_api::admin;
use sconce_api::worker::{Cancel, Capabilities, JOB_LIFETIME, Launch, Progress, Ready};
use serde_json::json;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Polling interval of the load progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What makes a server a worker.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Its command-line flags.
    pub launch: Launch,
    /// API key for callbacks.
    pub key: Option<String>,
    /// Heartbeat interval.
    pub beat: Duration,
    /// How long the events of a job of `/v1/jobs` wait for a client.
    pub job_lifetime: Duration,
}

impl Membership {
    /// With a heartbeat every 30 seconds, and the usual lifetime of jobs.
    pub fn new(launch: Launch, key: Option<String>) -> Membership {
        Membership { launch, key, beat: Duration::from_secs(30), job_lifetime: JOB_LIFETIME }
    }
}

/// State of a worker.
pub(crate) struct Member {
    pub(crate) membership: Membership,
    jobs: Jobs,
    metrics: WorkerMetrics,
    /// Facts that do not change once the model is loaded.
    facts: OnceLock<ModelFacts>,
}

impl Member {
    pub(crate) fn new(membership: Membership, registry: &Registry) -> Member {
        Member { membership, jobs: Jobs::default(), metrics: WorkerMetrics::new(registry), facts: OnceLock::new() }
    }

    /// Whether a client has yet to collect the events of a job.
    pub(crate) fn has_waiting_jobs(&self) -> bool {
        self.jobs.waiting() > 0
    }
}

/// Routes of this API. `/health` and `/metrics` exist on every server, and return more for a
/// worker.
pub(crate) fn routes(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    let guarded = OpenApiRouter::new().routes(routes!(shutdown)).layer(from_fn_with_state(app.clone(), guard));
    OpenApiRouter::new()
        .merge(guarded)
        .routes(routes!(execute::execute))
        .routes(routes!(cancel))
        .routes(routes!(execute::create))
        .routes(routes!(execute::stream))
        .routes(routes!(cancel_job))
        .routes(routes!(ready))
        .routes(routes!(progress))
        .routes(routes!(capabilities))
}

/// The worker's state, or an error if this server is not a worker.
fn member(app: &App) -> Result<&Arc<Member>, Fault> {
    let not =
        || Fault::new(crate::error::FaultKind::NoRoute, "this server is not a worker; start one with `sconce worker`");
    app.member.as_ref().ok_or_else(not)
}

/// Cancels a job; succeeds even if there is no such job.
#[utoipa::path(post, path = "/cancel", request_body = Cancel,
    responses((status = 202, description = "The job's stream ends with CANCELLED, if it has not ended yet")))]
async fn cancel(State(app): State<Arc<App>>, JsonBody { body, .. }: JsonBody<Cancel>) -> Result<Response, Fault> {
    cancel_by_id(&app, &body.job_id)
}

/// Cancels a job; the same as `POST /cancel`.
#[utoipa::path(delete, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "Id of the job")),
    responses((status = 202, description = "The job's stream ends with CANCELLED, if it has not ended yet")))]
async fn cancel_job(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Fault> {
    cancel_by_id(&app, &id)
}

fn cancel_by_id(app: &App, id: &str) -> Result<Response, Fault> {
    let ended = member(app)?.jobs.cancel(id);
    let status = if ended > 0 { "cancelling" } else { "not_found" };
    Ok((StatusCode::ACCEPTED, Json(json!({"job_id": id, "status": status}))).into_response())
}

/// Drains the worker and ends it.
#[utoipa::path(post, path = "/shutdown", responses((status = 202, description = "The worker accepts no more jobs, finishes running ones and ends")))]
async fn shutdown(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    member(&app)?;
    app.stop.drain();
    Ok((StatusCode::ACCEPTED, Json(json!({"status": "draining"}))).into_response())
}

/// Whether the worker accepts jobs.
#[utoipa::path(get, path = "/v1/ready", responses((status = 200, description = "Whether the worker is ready", body = Ready)))]
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Ready>, Fault> {
    member(&app)?;
    Ok(Json(readiness(&app)))
}

fn readiness(app: &App) -> Ready {
    let first = app.models.list().into_iter().next().map(|summary| summary.status);
    let (model_loaded, state) = match first {
        Some(ModelStatus::Ready) if app.stop.is_draining() => (true, "draining"),
        Some(status) => (status == ModelStatus::Ready, status.name()),
        None => (false, "resting"),
    };
    Ready { ready: state == "ready", state: state.into(), model_loaded }
}

/// Load progress of the model, as a stream until it is ready.
#[utoipa::path(get, path = "/v1/loading/progress",
    responses((status = 200, description = "Events; the last is `ready` or `failed`", body = Progress, content_type = "text/event-stream")))]
async fn progress(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    member(&app)?;
    let events = futures_util::stream::unfold((app, None::<Progress>, false), |(app, last, done)| async move {
        if done {
            return None;
        }
        loop {
            let now = stage(&app);
            let is_last = matches!(now.stage.as_str(), "ready" | "failed" | "unloaded");
            if last.as_ref() != Some(&now) {
                let mut events = vec![sse::data(&now)];
                if is_last {
                    events.push(sse::done());
                }
                return Some((futures_util::stream::iter(events), (app, Some(now), is_last)));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    Ok(sse::answer(events.flatten()))
}

fn stage(app: &App) -> Progress {
    let Some(summary) = app.models.list().into_iter().next() else {
        return Progress { stage: "unloaded".into(), ..Progress::default() };
    };
    match summary.status {
        ModelStatus::Loading(progress) => {
            let admin::Progress { stage, percent, layers_loaded, layers_total, .. } = progress;
            Progress { stage, percent, layers_loaded, layers_total, ..Progress::default() }
        }
        ModelStatus::Failed(why) | ModelStatus::ReloadFailed(why) => {
            Progress { stage: "failed".into(), message: Some(why), ..Progress::default() }
        }
        ModelStatus::Ready | ModelStatus::Unloaded => {
            let vram_mb = summary.served.as_deref().map(|s| health::bytes(s) / 1_000_000);
            let layers = summary.served.as_deref().and_then(|s| s.layers);
            Progress {
                stage: "ready".into(),
                layers_loaded: layers,
                layers_total: layers,
                vram_mb,
                percent: Some(100.0),
                message: None,
            }
        }
    }
}

/// The device and backend of the worker.
#[utoipa::path(get, path = "/v1/capabilities", responses((status = 200, description = "Device and backend", body = Capabilities)))]
async fn capabilities(State(app): State<Arc<App>>) -> Result<Json<Capabilities>, Fault> {
    let member = member(&app)?;
    let served = app.models.list().into_iter().next().and_then(|summary| summary.served);
    // `auto` is resolved only when the model is loaded.
    let device = served.map_or_else(|| member.membership.launch.device(), |s| s.model.loaded().plan().runs_on());
    Ok(Json(Capabilities::of(&device)))
}
