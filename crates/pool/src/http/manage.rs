//! The manager's own HTTP paths.

use super::messages::{Dialect, error_response, error_response_with_status};
use super::metrics;
use super::proxy::read;
use crate::client::get;
use crate::core::{Endpoint, Origin, Outcome, Serving, Spec};
use crate::hosts::PASSED;
use crate::manager::Manager;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use sconce_api::pool::{self as api, Code, Failure};
use sconce_api::worker::Callback;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Time-out of a request to a worker.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);

async fn body<T: DeserializeOwned>(pool: &Manager, request: Request) -> Result<T, Box<Response>> {
    let failed = |status, what: String| {
        Box::new(error_response_with_status(&Failure::new(Code::InvalidRequest, what), Dialect::Pool, status))
    };
    // A web page may send any other content type to another site without a CORS preflight.
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        let what = format!("the body must be JSON with `Content-Type: application/json`, not `{kind}`");
        return Err(failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    }
    let bytes = read(pool, request.into_body()).await.map_err(|(status, what)| failed(status, what))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        failed(StatusCode::BAD_REQUEST, format!("the body does not match this path's request schema: {e}"))
    })
}

pub(crate) async fn state(State(pool): State<Arc<Manager>>) -> Json<api::PoolState> {
    let everything = pool.core().snapshot(pool.now());
    Json(api::PoolState { disk_error: pool.store.write_error(), ..everything })
}

/// Starts a worker, and responds when it is ready or has failed.
pub(crate) async fn start(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let start: api::Start = match body(&pool, request).await {
        Ok(start) => start,
        Err(response) => return *response,
    };
    let device = match start.requested_device() {
        Ok(device) => device,
        Err(why) => return error_response(&why, Dialect::Pool),
    };
    let spec = Spec {
        name: start.name.unwrap_or_else(|| start.model_ref.clone()),
        model: start.model_ref,
        device,
        tuning: start.flags,
        origin: Origin::Requested,
    };
    let mut changes = pool.changes();
    let id = pool.start(spec);
    loop {
        let outcome = pool.core().outcome(&id);
        match outcome {
            Outcome::Ready(started) => return Json(*started).into_response(),
            Outcome::Failed(why) => return error_response(&why, Dialect::Pool),
            Outcome::Pending => {}
        }
        if changes.changed().await.is_err() {
            let failure = Failure::new(Code::WorkerStartFailed, "the manager is shutting down");
            return error_response(&failure, Dialect::Pool);
        }
    }
}

/// Stops a worker. The response gives its state at once; `/v2/state` shows when it is gone.
pub(crate) async fn stop(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let api::Stop { worker_id } = match body(&pool, request).await {
        Ok(stop) => stop,
        Err(response) => return *response,
    };
    let stopped = pool.decide(|core, now| match core.stop(&worker_id, now) {
        Ok(actions) => (Ok(()), actions),
        Err(why) => (Err(why), Vec::new()),
    });
    worker_state(&pool, worker_id, stopped)
}

pub(crate) async fn drain(State(pool): State<Arc<Manager>>, Path(id): Path<String>) -> Response {
    let drained = pool.decide(|core, _| match core.drain(&id) {
        Ok(actions) => (Ok(()), actions),
        Err(why) => (Err(why), Vec::new()),
    });
    worker_state(&pool, id, drained)
}

fn worker_state(pool: &Manager, worker_id: String, done: Result<(), Box<Failure>>) -> Response {
    if let Err(why) = done {
        return error_response(&why, Dialect::Pool);
    }
    let worker = pool.core().worker(&worker_id, pool.now());
    // Gone already: it had no process to wait for.
    let (state, active) = worker.map_or((api::State::Draining, 0), |w| (w.state, w.active));
    (StatusCode::ACCEPTED, Json(api::Stopping { worker_id, state, active })).into_response()
}

/// Ready callback or heartbeat of a worker.
pub(crate) async fn ready(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let (id, port) = match body(&pool, request).await {
        Ok(Callback::Ready(callback)) => {
            let port = callback.uri.rsplit(':').next().and_then(|p| p.trim_end_matches('/').parse().ok());
            (callback.worker_id, port.unwrap_or(0))
        }
        Ok(Callback::Heartbeat(beat)) => (beat.worker.id, beat.worker.port),
        Err(response) => return *response,
    };
    // The id alone does not identify a worker: its port must match. Its callback may arrive before
    // the core has handled `Spawned`.
    for _ in 0..50 {
        let known = pool.core().worker(&id, pool.now());
        match known {
            Some(worker) if worker.pid.is_none() => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => break,
        }
    }
    if pool.core().worker(&id, pool.now()).is_some() && !pool.core().has_port(&id, port) {
        // An earlier process of this worker that the last manager did not live to record. It ends
        // itself when it gets this response.
        let what = format!("worker {id} does not have port {port}; another process called back in its name");
        return error_response(&Failure::new(Code::WorkerNotFound, what), Dialect::Pool);
    }
    let callback = pool.decide(|core, now| match core.ready_callback(&id, now) {
        Ok(actions) => (Ok(!actions.is_empty()), actions),
        Err(why) => (Err(why), Vec::new()),
    });
    match callback {
        Ok(is_change) => {
            if is_change {
                tracing::info!(worker = id, "ready");
            }
            Json(json!({"acknowledged": true})).into_response()
        }
        Err(why) => error_response(&why, Dialect::Pool),
    }
}

pub(crate) async fn capabilities(State(pool): State<Arc<Manager>>) -> Json<api::Capabilities> {
    let one = |d: &crate::core::Device| api::DeviceCapability {
        id: d.device.clone(),
        name: d.description.clone(),
        device_type: d.kind().into(),
        vram_gb: (d.total_bytes as f64 / 1_073_741_824.0 * 100.0).round() / 100.0,
        compute_capability: d.description.split_once("compute capability ").map(|(_, c)| c.trim().to_string()),
    };
    Json(api::Capabilities { devices: pool.core().devices().iter().map(one).collect() })
}

/// Healthy if a worker takes requests.
pub(crate) async fn health(State(pool): State<Arc<Manager>>) -> Response {
    let states = pool.core().states();
    let able = states[&api::State::Ready] + states[&api::State::Busy];
    let workers: serde_json::Map<String, Value> = states.iter().map(|(s, n)| (s.name().into(), json!(n))).collect();
    let (status, word) =
        if able > 0 { (StatusCode::OK, "healthy") } else { (StatusCode::SERVICE_UNAVAILABLE, "unhealthy") };
    (status, Json(json!({"status": word, "workers": workers}))).into_response()
}

/// The same page of several workers, fetched concurrently.
pub(super) async fn pages(pool: &Manager, path: &str, workers: Vec<Serving>) -> Vec<(Serving, axum::body::Bytes)> {
    let pages = workers.into_iter().map(|worker| async move {
        let page = page(pool, path, &worker.endpoint).await;
        let page = page.inspect_err(|why| tracing::debug!(worker = worker.id, path, "{why}"));
        page.ok().map(|text| (worker, text))
    });
    join_all(pages).await.into_iter().flatten().collect()
}

async fn page(pool: &Manager, path: &str, endpoint: &Endpoint) -> Result<axum::body::Bytes, String> {
    if let Endpoint::Port(port) = endpoint {
        let url = format!("http://127.0.0.1:{port}{path}");
        return get(&pool.client, &url, &pool.token, PAGE_TIMEOUT).await.map_err(|lost| lost.why);
    }
    let host = pool.host(endpoint).ok_or("unknown host")?;
    match host.page(path, PAGE_TIMEOUT).await {
        Ok((status, page)) if status.is_success() => Ok(page),
        Ok((status, _)) => Err(format!("it answered {status}")),
        Err(lost) => Err(lost.why),
    }
}

pub(crate) async fn metrics(State(pool): State<Arc<Manager>>, headers: HeaderMap) -> Response {
    let (own, mut serving) = {
        let core = pool.core();
        let retries = pool.counts.retries.load(Ordering::Relaxed);
        (metrics::manager_metrics(&core, retries, pool.store.write_error().is_none()), core.serving())
    };
    // A host has one page for all its models. Another pool gets this host's pages only: two pools
    // that are each other's hosts would ask each other forever.
    let mut hosts = BTreeSet::new();
    let is_pool = headers.contains_key(PASSED);
    serving.retain(|worker| match &worker.endpoint {
        Endpoint::Host(host) => !is_pool && hosts.insert(host.clone()),
        Endpoint::Port(_) => true,
    });
    let label = |(worker, page): (Serving, axum::body::Bytes)| {
        let text = String::from_utf8_lossy(&page).into_owned();
        match worker.endpoint {
            Endpoint::Host(host) => (host, metrics::valid_lines(&text)),
            Endpoint::Port(_) => (worker.id, text),
        }
    };
    let texts: Vec<(String, String)> = pages(&pool, "/metrics", serving).await.into_iter().map(label).collect();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::merge(&own, &texts)).into_response()
}

/// The models of all workers, each once.
pub(crate) async fn models(State(pool): State<Arc<Manager>>) -> Json<Value> {
    let mut serving = pool.core().serving();
    serving.sort_by(|a, b| a.model.cmp(&b.model));
    serving.dedup_by(|a, b| a.model == b.model);
    let (local, remote): (Vec<_>, Vec<_>) =
        serving.into_iter().partition(|worker| matches!(worker.endpoint, Endpoint::Port(_)));
    let mut data: Vec<Value> = Vec::new();
    for (_, page) in pages(&pool, "/v1/models", local).await {
        let Ok(Value::Object(mut list)) = serde_json::from_slice(&page) else { continue };
        if let Some(Value::Array(models)) = list.remove("data") {
            data.extend(models);
        }
    }
    // What other hosts write about their models is not passed on.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let one = |worker: Serving| json!({"id": worker.model, "object": "model", "created": now, "owned_by": "sconce"});
    data.extend(remote.into_iter().map(one));
    Json(json!({"object": "list", "data": data}))
}
