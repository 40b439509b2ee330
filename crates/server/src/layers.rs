//! What stands around every handler: ids, keys, panics, the wording of faults, the log.

use crate::app::App;
use crate::error::{Dialect, Fault, FaultKind};
use crate::trail::Trail;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// How llama.cpp's and Azure's clients show a key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IGNORED: HeaderName = HeaderName::from_static("x-sconce-ignored");

/// Paths that need no key: a balancer that asks whether we are well has none.
const OPEN: [&str; 3] = ["/health", "/ping", "/v1/ready"];

/// The outermost: every request gets an id, an answer in the words of its dialect, and a line in the log.
pub(crate) async fn around(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let trail = Trail::new(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    if let Some(traces) = &app.config.traces {
        trail.trace(traces.begin(&method, &path, request.headers()));
    }
    request.extensions_mut().insert(trail.clone());
    let mut gone = Gone { trail: &trail, method: &method, path: &path, answered: false };
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed").into_response()
    });
    gone.answered = true;
    if let Some(fault) = response.extensions_mut().remove::<Fault>() {
        let worded = fault.worded(trail.dialect().unwrap_or_else(|| Dialect::of(&path)));
        // Which pages may read it was said on the way out.
        let head = std::mem::replace(&mut response, worded).into_parts().0.headers;
        response.headers_mut().extend(head);
        // What was refused before anybody was asked to work on it is a request all the same.
        if let (Some(route), false) = (&route, trail.is_counted()) {
            app.metrics.refused(route.as_str().trim_start_matches('/'), &fault);
        }
        if response.status().is_server_error() && fault.kind != FaultKind::Loading {
            tracing::warn!(id = shown(&trail.id), path, "{fault}");
        }
    }
    let head = response.headers_mut();
    head.insert(REQUEST_ID, trail.id.clone());
    if let Some(ignored) = trail.ignored_header() {
        head.insert(IGNORED, ignored);
    }
    let ms = trail.begun.elapsed().as_secs_f64() * 1e3;
    let (status, model) = (response.status().as_u16(), trail.model().unwrap_or_default());
    let id = shown(&trail.id);
    trail.traced(|span| span.answered(&method, route.as_ref().map(MatchedPath::as_str), status, id));
    // Those who ask every few seconds whether we are well would fill the log.
    match path.as_str() {
        "/health" | "/ping" | "/metrics" => {
            tracing::debug!(target: "sconce::access", id, %method, path, status, ms, model);
        }
        path => tracing::info!(target: "sconce::access", id, %method, path, status, ms, model),
    }
    response
}

fn shown(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or("-")
}

/// Logs a request whose client went away before there was an answer: its future is dropped, and this with it.
struct Gone<'a> {
    trail: &'a Trail,
    method: &'a Method,
    path: &'a str,
    answered: bool,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let ms = self.trail.begun.elapsed().as_secs_f64() * 1e3;
            let (id, method, path) = (shown(&self.trail.id), self.method, self.path);
            tracing::info!(target: "sconce::access", id, %method, path, status = 499, ms, "the client went away");
        }
    }
}

/// Asks for a key, where there is one to be asked for.
pub(crate) async fn key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    if keys.is_empty() || OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    // Every key is compared, so that the time does not tell which was close.
    let known = shown_key(request.headers()).map(|shown| keys.iter().fold(false, |found, key| found | key.is(shown)));
    match known {
        Some(true) => next.run(request).await,
        Some(false) => Fault::new(FaultKind::Unauthorized, "the API key is not one of this server's").into_response(),
        None => {
            let what = "an API key is needed: `Authorization: Bearer KEY`";
            Fault::new(FaultKind::Unauthorized, what).code("missing_api_key").into_response()
        }
    }
}

/// The key that a request shows.
fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let head = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = head(AUTHORIZATION).and_then(|v| v.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
    bearer.or_else(|| head(API_KEY)).map(str::trim)
}

/// Which pages may read answers.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let origin = match origins.iter().any(|o| o == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|o| HeaderValue::from_str(o).ok())),
    };
    // `*` would not do for headers: browsers do not take `Authorization` to be among them.
    let headers = AllowHeaders::mirror_request();
    CorsLayer::new().allow_origin(origin).allow_methods(Any).allow_headers(headers).expose_headers(Any)
}

/// For paths that are not there.
pub(crate) async fn no_route(request: Request) -> Fault {
    let what = format!("there is nothing at {}; /docs lists what there is", request.uri().path());
    Fault::new(FaultKind::NoRoute, what)
}

/// For methods that a path does not have.
pub(crate) async fn no_method(request: Request) -> Fault {
    let what = format!("{} does not take {}; /docs says what it takes", request.uri().path(), request.method());
    Fault::new(FaultKind::Method, what)
}
