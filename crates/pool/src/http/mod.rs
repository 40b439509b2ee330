//! HTTP interface of the manager: its own paths; all other requests are proxied to workers.

mod docs;
mod jobs;
mod manage;
mod messages;
mod metrics;
mod peer;
mod proxy;
mod relay;
mod remote;
mod routing_key;

pub(crate) use jobs::WaitingJobs;
pub(crate) use metrics::RouteCounts;
pub(crate) use peer::Peer;
use peer::host_of;

use crate::manager::Manager;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post};
use messages::{Dialect, error_response, error_response_with_status, missing_key};
use sconce_api::pool::{Code, Failure, READY_PATH};
use sconce_api::worker::HEARTBEAT_PATH;
use std::sync::Arc;
use subtle::ConstantTimeEq;

pub(crate) fn router(pool: &Arc<Manager>) -> Router {
    Router::new()
        .route("/v2/state", get(manage::state))
        .route("/v2/workers/start", post(manage::start))
        .route("/v2/workers/stop", post(manage::stop))
        .route("/v2/workers/{id}/drain", post(manage::drain))
        .route(READY_PATH, post(manage::ready))
        .route(HEARTBEAT_PATH, post(manage::ready))
        .route("/v1/capabilities", get(manage::capabilities))
        .route("/v1/models", get(manage::models))
        .route("/health", get(manage::health))
        .route("/ping", get(manage::health))
        .route("/metrics", get(manage::metrics))
        .route("/docs", get(docs::page))
        .route("/openapi.json", get(docs::openapi))
        .route("/api-doc/openapi.json", get(docs::openapi))
        .route("/cancel", post(proxy::cancel))
        .route("/execute", post(proxy::forward))
        .route("/v1/jobs", post(proxy::forward))
        .route("/v1/jobs/{id}", delete(jobs::cancel))
        .route("/v1/jobs/{id}/stream", get(jobs::stream))
        .route("/v2/rerank", post(proxy::forward))
        .fallback(proxy::forward)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(pool.clone(), key))
        .layer(from_fn_with_state(pool.clone(), host))
        .with_state(pool.clone())
}

/// Refuses host names that are not the manager's, and requests that have passed this manager
/// already.
async fn host(State(pool): State<Arc<Manager>>, request: Request, next: Next) -> Response {
    let (path, sent) = (request.uri().path(), host_of(request.uri(), request.headers()));
    if let Some(what) = remote::circle(&pool, request.headers()) {
        let failure = Failure::new(Code::InvalidRequest, what);
        return error_response_with_status(&failure, Dialect::of(path), StatusCode::LOOP_DETECTED);
    }
    match pool.config.allowed_hosts().refusal(sent) {
        Some(what) => error_response(&Failure::new(Code::Forbidden, what), Dialect::of(path)),
        None => next.run(request).await,
    }
}

/// Checks API keys: the workers' token on the paths of their callbacks, the manager's key, if it
/// has one, on all others. Health checks need no key.
///
/// Anybody who can start a worker can read any directory as a model and fill the memory. So without
/// a key, workers are started, stopped and listed from this machine only, and not through a proxy
/// or by a web page on it.
async fn key(State(pool): State<Arc<Manager>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let sent = sent.and_then(|v| v.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let sent = sent.map(|(_, key)| key.trim());
    let is = |key: &str| sent.is_some_and(|sent| bool::from(sent.as_bytes().ct_eq(key.as_bytes())));
    let open = match &pool.config.api_key {
        _ if path == READY_PATH || path == HEARTBEAT_PATH => is(&pool.token),
        _ if path == "/health" || path == "/ping" => true,
        Some(key) => is(key),
        None => true,
    };
    let manages = path.starts_with("/v2/") && path != READY_PATH && path != "/v2/rerank";
    if open && manages && pool.config.api_key.is_none() {
        let peer = request.extensions().get::<Peer>();
        if !peer.is_some_and(|peer| peer.is_this_machine(request.uri(), request.headers())) {
            let what = "without --api-key, this path accepts requests from this machine only";
            return error_response(&Failure::new(Code::Forbidden, what), Dialect::of(path));
        }
    }
    if open {
        return next.run(request).await;
    }
    match sent {
        Some(_) => error_response(&Failure::new(Code::Unauthorized, "wrong API key"), Dialect::of(path)),
        None => missing_key(Dialect::of(path)),
    }
}

async fn no_method(request: Request) -> Response {
    let path = request.uri().path();
    let what = format!("{path} does not support {}", request.method());
    error_response_with_status(
        &Failure::new(Code::InvalidRequest, what),
        Dialect::of(path),
        StatusCode::METHOD_NOT_ALLOWED,
    )
}
