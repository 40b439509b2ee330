//! Middleware around every handler: request ids, host names, API keys, panics, error responses, the
//! access log.

use crate::app::App;
use crate::error::{Dialect, Fault, FaultKind};
use crate::http_context::{Background, HttpContext};
use crate::page;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use sconce_api::hosts::is_localhost;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// The header in which llama.cpp's and Azure's clients send a key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same in Anthropic's API.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const IGNORED: HeaderName = HeaderName::from_static("x-sconce-ignored");

/// Paths that need no API key: a load balancer's health check has none.
const OPEN: [&str; 3] = ["/health", "/ping", "/v1/ready"];

/// The outermost layer: gives every request an id, writes errors in the API of the path, and logs
/// the request.
pub(crate) async fn around(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let context = HttpContext::new(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    if request.extensions().get::<Background>().is_some() {
        context.mark_background();
    }
    if let Some(traces) = &app.config.traces {
        context.set_span(traces.begin(&method, &path, request.headers()));
    }
    request.extensions_mut().insert(context.clone());
    let mut disconnect_log = DisconnectLog { context: &context, method: &method, path: &path, answered: false };
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed").into_response()
    });
    disconnect_log.answered = true;
    let dialect = context.dialect().unwrap_or_else(|| Dialect::of(&path));
    if let Some(fault) = response.extensions_mut().remove::<Fault>() {
        let written = match dialect {
            Dialect::Anthropic => fault.clone().request_id(id_str(&context.id)).response(dialect),
            dialect => fault.response(dialect),
        };
        // Keep the headers of inner layers, such as CORS.
        let head = std::mem::replace(&mut response, written).into_parts().0.headers;
        response.headers_mut().extend(head);
        // Batches repeat requests that fail for now.
        response.extensions_mut().insert(fault.kind);
        // Count requests that were refused before they reached a model.
        if let (Some(route), false) = (&route, context.is_counted()) {
            app.metrics.refused(route.as_str().trim_start_matches('/'), &fault);
        }
        if response.status().is_server_error() && fault.kind != FaultKind::Loading {
            tracing::warn!(id = id_str(&context.id), path, "{fault}");
        }
    }
    let head = response.headers_mut();
    head.insert(REQUEST_ID, context.id.clone());
    if dialect == Dialect::Anthropic {
        head.insert(ANTHROPIC_REQUEST_ID, context.id.clone());
    }
    if let Some(ignored) = context.ignored_header() {
        head.insert(IGNORED, ignored);
    }
    let ms = context.started_at.elapsed().as_secs_f64() * 1e3;
    let (status, model) = (response.status().as_u16(), context.model().unwrap_or_default());
    let id = id_str(&context.id);
    context.with_span(|span| span.record_response(&method, route.as_ref().map(MatchedPath::as_str), status, id));
    // Health checks and scrapes every few seconds would fill the log, and so would an open page and
    // batches.
    match path.as_str() {
        "/health" | "/ping" | "/metrics" | "/v1/status" => {
            tracing::debug!(target: "sconce::access", id, %method, path, status, ms, model);
        }
        path if page::is_page(&app, &method, path) => {
            tracing::debug!(target: "sconce::access", id, %method, path, status, ms, model);
        }
        path if context.is_background() => {
            tracing::debug!(target: "sconce::access", id, %method, path, status, ms, model, "a line of a batch");
        }
        path => tracing::info!(target: "sconce::access", id, %method, path, status, ms, model),
    }
    response
}

fn id_str(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or("-")
}

/// Logs a request whose client disconnected before the response: axum drops the request's future,
/// and this value with it.
struct DisconnectLog<'a> {
    context: &'a HttpContext,
    method: &'a Method,
    path: &'a str,
    answered: bool,
}

impl Drop for DisconnectLog<'_> {
    fn drop(&mut self) {
        if !self.answered && !self.context.is_background() {
            let ms = self.context.started_at.elapsed().as_secs_f64() * 1e3;
            let (id, method, path) = (id_str(&self.context.id), self.method, self.path);
            tracing::info!(target: "sconce::access", id, %method, path, status = 499, ms, "the client disconnected");
        }
    }
}

/// The host name that the client used.
pub(crate) fn host_of(request: &Request) -> Option<&str> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    host.or(request.uri().authority().map(|authority| authority.as_str()))
}

/// Refuses host names that are not the server's.
pub(crate) async fn host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.allowed_hosts.refusal(host_of(&request)) {
        Some(what) => Fault::new(FaultKind::Forbidden, what).into_response(),
        None => next.run(request).await,
    }
}

/// Whether a web page of another origin sent the request. Browsers name the origin of a page in every
/// request that may change something; programs name none.
pub(crate) fn is_from_foreign_page(app: &App, request: &Request) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else { return false };
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    match (authority, host_of(request)) {
        // A name that anyone may point at this machine does not make a page the server's own.
        (Some(authority), Some(host)) => !(authority.eq_ignore_ascii_case(host) && app.allowed_hosts.is_known(host)),
        _ => true,
    }
}

/// Checks the API key, if the server has any.
pub(crate) async fn key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    let path = request.uri().path();
    if keys.is_empty() || OPEN.contains(&path) || page::is_page(&app, request.method(), path) {
        return next.run(request).await;
    }
    // Every key is compared, so that timing does not reveal which one was close.
    let known = presented_key(request.headers())
        .map(|presented| keys.iter().fold(false, |found, key| found | key.is(presented)));
    match known {
        Some(true) => next.run(request).await,
        Some(false) => Fault::new(FaultKind::Unauthorized, "wrong API key").into_response(),
        None => {
            let what = "missing API key; send `Authorization: Bearer KEY`";
            Fault::new(FaultKind::Unauthorized, what).code("missing_api_key").into_response()
        }
    }
}

/// The API key of a request: `Authorization: Bearer KEY` or `x-api-key: KEY`.
pub fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let head = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = head(AUTHORIZATION).and_then(|v| v.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
    bearer.or_else(|| head(API_KEY)).map(str::trim)
}

/// CORS: which origins may read responses.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    let origin = match origins.iter().any(|o| o == "*") {
        true => AllowOrigin::any(),
        false => {
            let origins = origins.to_vec();
            AllowOrigin::predicate(move |origin, _| is_allowed_origin(&origins, origin))
        }
    };
    // `*` is not enough for headers: browsers exclude `Authorization` from it.
    let headers = AllowHeaders::mirror_request();
    CorsLayer::new().allow_origin(origin).allow_methods(Any).allow_headers(headers).expose_headers(Any)
}

/// Whether pages of an origin may read responses. `localhost` in the list stands for all origins of
/// loopback.
pub(crate) fn is_allowed_origin(origins: &[String], origin: &HeaderValue) -> bool {
    origins.iter().any(|known| match known.as_str() {
        "*" => true,
        "localhost" => origin.to_str().is_ok_and(is_loopback_origin),
        known => known.as_bytes() == origin.as_bytes(),
    })
}

/// Whether an origin is a page of this machine: `http://localhost`, with any port.
fn is_loopback_origin(origin: &str) -> bool {
    let Some(host) = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme)) else {
        return false;
    };
    // What follows the name must be a port, not a user's password before another name.
    let port = match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port,
        _ => "",
    };
    port.bytes().all(|b| b.is_ascii_digit()) && is_localhost(host)
}

/// Fallback for unknown paths.
pub(crate) async fn no_route(request: Request) -> Fault {
    let what = format!("no such path: {}; GET /docs lists the paths", request.uri().path());
    Fault::new(FaultKind::NoRoute, what)
}

/// Fallback for methods that a path does not support.
pub(crate) async fn no_method(request: Request) -> Fault {
    let what = format!("{} does not support {}; GET /docs lists the methods", request.uri().path(), request.method());
    Fault::new(FaultKind::Method, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_and_loopback_origins_are_allowed() {
        let allowed = |origins: &[&str], origin: &'static str| {
            let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
            is_allowed_origin(&origins, &HeaderValue::from_static(origin))
        };
        for origin in
            ["http://localhost", "https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]", "http://[::1]:3000"]
        {
            assert!(allowed(&["localhost"], origin), "{origin}");
        }
        for origin in [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://notlocalhost",
            "http://localhost:x@evil.example",
            "http://localhost:80/",
            "localhost",
            "null",
        ] {
            assert!(!allowed(&["localhost", "https://a.example"], origin), "{origin}");
        }
        assert!(allowed(&["localhost", "https://a.example"], "https://a.example"));
        assert!(!allowed(&["https://a.example"], "http://localhost") && allowed(&["*"], "null"));
    }
}
