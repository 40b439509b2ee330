//! The manager over HTTP: its own paths, and everything else on to workers.

mod brief;
mod manage;
mod metrics;
mod peer;
mod proxy;
mod relay;
mod words;

pub(crate) use metrics::RouteCounts;
pub(crate) use peer::Peer;

use crate::manager::Manager;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use sconce_api::pool::{Code, Failure, READY_PATH};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use words::{Dialect, answer, answer_with};

pub(crate) fn router(pool: &Arc<Manager>) -> Router {
    Router::new()
        .route("/v2/state", get(manage::state))
        .route("/v2/workers/start", post(manage::start))
        .route("/v2/workers/stop", post(manage::stop))
        .route("/v2/workers/{id}/drain", post(manage::drain))
        .route(READY_PATH, post(manage::ready))
        .route("/v1/capabilities", get(manage::capabilities))
        .route("/v1/models", get(manage::models))
        .route("/health", get(manage::health))
        .route("/ping", get(manage::health))
        .route("/metrics", get(manage::metrics))
        .route("/docs", get(manage::docs))
        .route("/api-doc/openapi.json", get(manage::docs))
        .route("/cancel", post(proxy::cancel))
        .route("/execute", post(proxy::pass))
        .route("/v2/rerank", post(proxy::pass))
        .fallback(proxy::pass)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(pool.clone(), key))
        .with_state(pool.clone())
}

/// Asks for a key: workers for theirs, everybody else for the manager's, if it has one. Whoever asks whether we are well needs none.
///
/// Whoever may start a worker may read any directory as a model and fill the memory. So where there is no key, workers are started,
/// stopped and looked at from this machine alone, and not by what a proxy or a web page sends from it.
async fn key(State(pool): State<Arc<Manager>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let shown = shown.and_then(|v| v.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let shown = shown.map(|(_, key)| key.trim());
    let is = |key: &str| shown.is_some_and(|shown| bool::from(shown.as_bytes().ct_eq(key.as_bytes())));
    let open = match &pool.config.api_key {
        _ if path == READY_PATH => is(&pool.token),
        _ if path == "/health" || path == "/ping" => true,
        Some(key) => is(key),
        None => true,
    };
    let manages = path.starts_with("/v2/") && path != READY_PATH && path != "/v2/rerank";
    if open && manages && pool.config.api_key.is_none() {
        let peer = request.extensions().get::<Peer>();
        if !peer.is_some_and(|peer| peer.is_this_machine(request.uri(), request.headers())) {
            let what = "without an API key (--api-key) workers are managed from this machine alone";
            return answer_with(&Failure::new(Code::Unauthorized, what), Dialect::of(path), StatusCode::FORBIDDEN);
        }
    }
    if open {
        return next.run(request).await;
    }
    let what = match shown {
        Some(_) => "the API key is not this manager's",
        None => "an API key is needed: `Authorization: Bearer KEY`",
    };
    answer(&Failure::new(Code::Unauthorized, what), Dialect::of(path))
}

async fn no_method(request: Request) -> Response {
    let path = request.uri().path();
    let what = format!("{path} does not take {}", request.method());
    answer_with(&Failure::new(Code::InvalidRequest, what), Dialect::of(path), StatusCode::METHOD_NOT_ALLOWED)
}
