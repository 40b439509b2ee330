//! A pool's member: one model, jobs by name, and whoever started it told how it is.

mod about;
mod execute;
mod home;
mod jobs;

pub(crate) use home::report;

use super::admin::guard;
use crate::app::App;
use crate::asked::Asked;
use crate::error::Fault;
use crate::house::Standing;
use crate::sse;
use about::{About, Counted};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use jobs::Jobs;
use prometheus::Registry;
use sconce_api::worker::{Cancel, Capabilities, Launch, Progress, Ready};
use serde_json::json;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Between two looks at how far the model is.
const LOOK: Duration = Duration::from_millis(100);

/// What makes a server a worker.
#[derive(Clone, Debug)]
pub struct Membership {
    /// What it was started with.
    pub launch: Launch,
    /// What it shows to whoever started it.
    pub key: Option<String>,
    /// Between two heartbeats.
    pub beat: Duration,
}

impl Membership {
    /// With a heartbeat every 30 seconds.
    pub fn new(launch: Launch, key: Option<String>) -> Membership {
        Membership { launch, key, beat: Duration::from_secs(30) }
    }
}

/// A worker's own state.
pub(crate) struct Member {
    pub(crate) membership: Membership,
    jobs: Jobs,
    counted: Counted,
    /// What does not change once the model is there.
    about: OnceLock<About>,
}

impl Member {
    pub(crate) fn new(membership: Membership, registry: &Registry) -> Member {
        Member { membership, jobs: Jobs::default(), counted: Counted::new(registry), about: OnceLock::new() }
    }
}

/// Its paths. `/health` and `/metrics` are everybody's, and say more of a worker.
pub(crate) fn routes(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    let guarded = OpenApiRouter::new().routes(routes!(shutdown)).layer(from_fn_with_state(app.clone(), guard));
    OpenApiRouter::new()
        .merge(guarded)
        .routes(routes!(execute::execute))
        .routes(routes!(cancel))
        .routes(routes!(ready))
        .routes(routes!(progress))
        .routes(routes!(capabilities))
}

/// The worker; these paths are there only where there is one.
fn member(app: &App) -> Result<&Arc<Member>, Fault> {
    let not =
        || Fault::new(crate::error::FaultKind::NoRoute, "this server is no worker; start one with `sconce worker`");
    app.member.as_ref().ok_or_else(not)
}

/// Ends a job, be it there or not.
#[utoipa::path(post, path = "/cancel", request_body = Cancel,
    responses((status = 202, description = "Its stream ends with CANCELLED, if it has not ended yet")))]
async fn cancel(State(app): State<Arc<App>>, Asked { body, .. }: Asked<Cancel>) -> Result<Response, Fault> {
    let ended = member(&app)?.jobs.cancel(&body.job_id);
    let status = if ended > 0 { "cancelling" } else { "not_found" };
    Ok((StatusCode::ACCEPTED, Json(json!({"job_id": body.job_id, "status": status}))).into_response())
}

/// Finishes what runs, and ends.
#[utoipa::path(post, path = "/shutdown", responses((status = 202, description = "It takes no more, finishes what runs and ends")))]
async fn shutdown(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    member(&app)?;
    app.stop.drain();
    Ok((StatusCode::ACCEPTED, Json(json!({"status": "draining"}))).into_response())
}

/// Whether jobs are taken.
#[utoipa::path(get, path = "/v1/ready", responses((status = 200, description = "Whether it is ready", body = Ready)))]
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Ready>, Fault> {
    member(&app)?;
    Ok(Json(standing(&app)))
}

fn standing(app: &App) -> Ready {
    let first = app.house.list().into_iter().next().map(|shown| shown.standing);
    let (model_loaded, state) = match first {
        Some(Standing::Ready) if app.stop.is_draining() => (true, "draining"),
        Some(standing) => (standing == Standing::Ready, standing.word()),
        None => (false, "resting"),
    };
    Ready { ready: state == "ready", state: state.into(), model_loaded }
}

/// How far the model is, until it is there.
#[utoipa::path(get, path = "/v1/loading/progress",
    responses((status = 200, description = "Events, the last of which is `ready` or `failed`", body = Progress, content_type = "text/event-stream")))]
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
            tokio::time::sleep(LOOK).await;
        }
    });
    Ok(sse::answer(events.flatten()))
}

fn stage(app: &App) -> Progress {
    let Some(shown) = app.house.list().into_iter().next() else {
        return Progress { stage: "unloaded".into(), ..Progress::default() };
    };
    match shown.standing {
        Standing::Loading(told) => Progress { stage: told.stage, percent: told.percent, ..Progress::default() },
        Standing::Failed(why) | Standing::Troubled(why) => {
            Progress { stage: "failed".into(), message: Some(why), ..Progress::default() }
        }
        Standing::Ready | Standing::Resting => {
            let vram_mb = shown.served.map(|s| about::bytes(&s) / 1_000_000);
            Progress { stage: "ready".into(), vram_mb, percent: Some(100.0), ..Progress::default() }
        }
    }
}

/// What it runs on.
#[utoipa::path(get, path = "/v1/capabilities", responses((status = 200, description = "What it runs on", body = Capabilities)))]
async fn capabilities(State(app): State<Arc<App>>) -> Result<Json<Capabilities>, Fault> {
    let member = member(&app)?;
    let served = app.house.list().into_iter().next().and_then(|shown| shown.served);
    // Until the model is there nobody knows what `auto` will be.
    let device =
        served.map_or_else(|| member.membership.launch.device(), |s| s.model.loaded().plan().device.to_string());
    Ok(Json(Capabilities::of(&device)))
}
