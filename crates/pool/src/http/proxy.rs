//! Proxies requests to workers. A request is sent to another worker if the first one did not begin
//! to answer, or answered that it is busy (429 or 503), or if its host was lost or does not know the
//! model (404). Any other answer is relayed, and its request is never sent again, because the client
//! may have received a part.

use super::messages::{Dialect, error_response, error_response_with_status};
use super::relay::{Relay, RequestGuard};
use super::remote::{HostLink, HostRequest};
use super::routing_key::{RoutingKey, tasks};
use super::{Peer, jobs};
use crate::core::{Endpoint, NoRoute, RouteQuery, Serving};
use crate::manager::Manager;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::{Builder, Parts};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use sconce_api::client::with_sources;
use sconce_api::pool::{Code, Failure};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Workers that may fail on a request before the request is assumed to be the cause.
const MAX_FAILED_WORKERS: usize = 2;
/// Hosts that may be lost with a request.
const MAX_LOST_HOSTS: usize = 8;
/// Time-out of a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// Hop-by-hop headers.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// Handles all paths that are not the manager's own.
pub(crate) async fn forward(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let dialect = Dialect::of(path);
    if tasks(path).is_none() {
        let what = format!("no such path: {path}; GET /docs lists the paths");
        let failure = Failure::new(Code::InvalidRequest, what);
        return error_response_with_status(&failure, dialect, StatusCode::NOT_FOUND);
    }
    match read(&pool, body).await {
        Ok(body) => route(&pool, &parts, body, dialect).await,
        Err((status, what)) => error_response_with_status(&Failure::new(Code::InvalidRequest, what), dialect, status),
    }
}

/// Reads the whole body, because a second worker may need it.
pub(super) async fn read(pool: &Manager, body: Body) -> Result<Bytes, (StatusCode, String)> {
    let (limit, client_timeout) = (pool.config.payload_limit, pool.config.client_timeout);
    match tokio::time::timeout(client_timeout, Limited::new(body, limit).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
            let what = format!("the body is larger than {limit} bytes; send less per request, or raise payload_limit");
            Err((StatusCode::PAYLOAD_TOO_LARGE, what))
        }
        Ok(Err(e)) => Err((StatusCode::BAD_REQUEST, format!("cannot read the body: {e}"))),
        Err(_) => {
            let what = "the body did not arrive in time; send it faster, or send less per request";
            Err((StatusCode::REQUEST_TIMEOUT, what.into()))
        }
    }
}

async fn route(pool: &Arc<Manager>, parts: &Parts, body: Bytes, dialect: Dialect) -> Response {
    let path = parts.uri.path();
    let key = RoutingKey::new(path, &body);
    let creates_job = path == "/v1/jobs";
    if let Some(refusal) = key.job.as_deref().filter(|_| creates_job).and_then(|job| jobs::refusal(pool, job)) {
        return refusal;
    }
    let (mut tried, mut last, mut not_found): (Vec<String>, Option<Response>, Option<Response>) = Default::default();
    // An unread response blocks an HTTP/1 connection; the other streams of an HTTP/2 connection
    // continue.
    let peer = parts.extensions.get::<Peer>().filter(|_| parts.version < Version::HTTP_2);
    let (mut attempts, mut broken, mut lost) = (0, 0, 0);
    loop {
        let query = RouteQuery {
            model: key.model.as_deref(),
            tasks: key.tasks,
            prefixes: &key.prefixes,
            tokens: key.tokens,
            tried: &tried,
            is_job: creates_job || path == "/execute",
        };
        let target = match pool.core().begin(&query) {
            Ok(target) => target,
            Err(_) if last.is_some() => return last.unwrap_or_default(),
            Err(why) => return not_found.unwrap_or_else(|| no_route(&why, dialect)),
        };
        let (job, link) = (key.job.clone(), pool.host(&target.endpoint).map(HostLink::new));
        if let Some(job) = &job {
            pool.add_job(job, &target.id);
        }
        let (id, tokens) = (target.id.clone(), key.tokens);
        let mut guard = RequestGuard { pool: pool.clone(), id, tokens, job, peer: peer.cloned(), link };
        attempts += 1;
        if attempts > 1 {
            pool.counts.retries.fetch_add(1, Ordering::Relaxed);
        }
        let sent = match (&target.endpoint, &mut guard.link) {
            (Endpoint::Host(_), Some(link)) => {
                HostRequest { parts, body: body.clone(), target: &target, query }.send(pool, link).await
            }
            (Endpoint::Host(name), None) => {
                Err(SendError { why: format!("there is no host {name}"), received: Received::No })
            }
            (Endpoint::Port(port), _) => send(pool, parts, body.clone(), *port).await,
        };
        match sent {
            Ok(response) if is_busy(response.status()) => last = Some(relay_response(response, guard, dialect)),
            Ok(response) if guard.link.is_some() && response.status() == StatusCode::NOT_FOUND => {
                // The host may have been restarted with other models.
                pool.decide(|core, now| ((), core.read_models_now(&target.id, now)));
                not_found = Some(relay_response(response, guard, dialect));
            }
            Ok(response) => {
                return match target.endpoint {
                    Endpoint::Port(port) if creates_job => jobs::created(response, guard, port).await,
                    _ => relay_response(response, guard, dialect),
                };
            }
            Err(SendError { why, received }) => {
                tracing::warn!(worker = target.id, "did not answer: {why}");
                drop(guard);
                pool.decide(|core, now| match received {
                    Received::Refused => ((), core.read_models_now(&target.id, now)),
                    Received::No | Received::Maybe | Received::HostLost => ((), core.probe_now(&target.id, now)),
                });
                if received == Received::HostLost && lost < MAX_LOST_HOSTS {
                    // The host may take the request when it is back.
                    lost += 1;
                    continue;
                }
                let what = format!("no worker of `{}` answered; last error: {why}", target.model);
                let failed = error_response(&Failure::new(Code::WorkerFailed, what), dialect);
                // The request itself may crash workers. It must not go from one to the next until
                // none is left.
                broken += usize::from(matches!(received, Received::Maybe | Received::HostLost));
                if broken >= MAX_FAILED_WORKERS {
                    return failed;
                }
                last.get_or_insert(failed);
            }
        }
        tried.push(target.id);
    }
}

/// Whether another worker may have capacity.
fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS
}

/// Why a worker did not answer.
pub(super) struct SendError {
    pub(super) why: String,
    pub(super) received: Received,
}

/// Whether a worker that did not answer has received the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// It has not.
    No,
    /// It does not take the requests of this pool.
    Refused,
    /// It may have failed because of the request.
    Maybe,
    /// Its host does not answer any more. That is hardly the fault of the request, and another
    /// worker takes requests.
    HostLost,
}

pub(super) async fn send(
    pool: &Manager,
    parts: &Parts,
    body: Bytes,
    port: u16,
) -> Result<axum::http::Response<Incoming>, SendError> {
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let key = HeaderValue::from_str(&format!("Bearer {}", pool.token)).ok();
    let request = request_to(parts, format!("http://127.0.0.1:{port}{path}"), key)
        .body(Full::new(body))
        .map_err(|e| SendError { why: e.to_string(), received: Received::No })?;
    pool.client.request(request).await.map_err(|e| {
        let received = if e.is_connect() { Received::No } else { Received::Maybe };
        SendError { why: with_sources(&e), received }
    })
}

/// A client's request, for the server at `url` with another key.
pub(super) fn request_to(parts: &Parts, url: String, authorization: Option<HeaderValue>) -> Builder {
    let mut request = hyper::Request::builder().method(parts.method.clone()).uri(url);
    if let Some(headers) = request.headers_mut() {
        *headers = end_to_end_headers(&parts.headers);
        let removed = [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::AUTHORIZATION];
        removed.iter().for_each(|h| drop(headers.remove(h)));
        headers.extend(authorization.map(|key| (header::AUTHORIZATION, key)));
    }
    request
}

/// The headers without the hop-by-hop ones.
pub(super) fn end_to_end_headers(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(',').map(|n| n.trim().to_lowercase()))
        .collect();
    let stays = |name: &HeaderName| {
        !HOP_BY_HOP.contains(name) && name.as_str() != "keep-alive" && !named.iter().any(|n| n == name.as_str())
    };
    headers.iter().filter(|(name, _)| stays(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// The headers with the id of the worker that answers.
pub(super) fn with_worker(mut headers: HeaderMap, id: &str) -> HeaderMap {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(HeaderName::from_static("x-sconce-worker"), id);
    }
    headers
}

pub(super) fn relay_response(
    response: axum::http::Response<Incoming>,
    guard: RequestGuard,
    dialect: Dialect,
) -> Response {
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let events = kind.starts_with("text/event-stream").then_some(dialect);
    let headers = with_worker(end_to_end_headers(&parts.headers), &guard.id);
    let mut answer = Response::new(Body::new(Relay::new(body, guard, events)));
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = headers;
    answer
}

/// The response to a request that has no route.
fn no_route(why: &NoRoute, dialect: Dialect) -> Response {
    let list = |names: &[String]| if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let failure = match why {
        NoRoute::Unknown { model, names } => {
            let what = format!("there is no model `{model}` on this server; available: {}", list(names));
            Failure { details: json!({"models": names}), ..Failure::new(Code::ModelNotFound, what) }
        }
        NoRoute::Unnamed { names } => {
            let what = format!("the request names no model, and there are several; name one of: {}", list(names));
            Failure { details: json!({"models": names}), ..Failure::new(Code::InvalidRequest, what) }
        }
        NoRoute::NotReady { model, why } => {
            let what = format!("no worker of `{model}` takes requests now ({why}); retry in a moment");
            Failure::new(Code::WorkerUnavailable, what)
        }
        NoRoute::NoJobs { model } => {
            let what = format!(
                "all workers of `{model}` are on other hosts, and jobs run on this host's workers only; send the request \
                 to /v1/chat/completions or /v1/completions"
            );
            Failure::new(Code::InvalidRequest, what)
        }
    };
    error_response(&failure, dialect)
}

/// `POST /cancel`: forwarded to the workers that run the job. A job that no worker runs is not an
/// error.
pub(crate) async fn cancel(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let body = match read(&pool, request.into_body()).await {
        Ok(body) => body,
        Err((status, what)) => {
            return error_response_with_status(&Failure::new(Code::InvalidRequest, what), Dialect::Worker, status);
        }
    };
    let Ok(sconce_api::worker::Cancel { job_id }) = serde_json::from_slice(&body) else {
        let failure = Failure::new(Code::InvalidRequest, "the body must be {\"job_id\": \"…\"}");
        return error_response(&failure, Dialect::Worker);
    };
    cancel_job(&pool, &job_id).await
}

/// Cancels a job at the workers that run it.
pub(super) async fn cancel_job(pool: &Manager, job_id: &str) -> Response {
    cancel_everywhere(pool, job_id, &pool.workers_of_job(job_id)).await;
    (StatusCode::ACCEPTED, axum::Json(json!({"job_id": job_id, "status": "cancelling"}))).into_response()
}

/// Cancels a job at these workers.
pub(super) async fn cancel_everywhere(pool: &Manager, job_id: &str, owners: &[String]) {
    let serving = pool.core().serving();
    // Other hosts run no jobs.
    let port = |worker: &Serving| match worker.endpoint {
        Endpoint::Port(port) if owners.contains(&worker.id) => Some((worker.id.clone(), port)),
        _ => None,
    };
    let cancellations = serving.iter().filter_map(port).map(|(id, port)| async move {
        let why = match tokio::time::timeout(CANCEL_TIMEOUT, cancel_at(pool, job_id, port)).await {
            Ok(Ok(status)) if status.is_success() => return,
            Ok(Ok(status)) => format!("it answered {status}"),
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {CANCEL_TIMEOUT:?}"),
        };
        tracing::warn!(worker = id, job = job_id, "cannot cancel a job: {why}");
    });
    join_all(cancellations).await;
}

async fn cancel_at(pool: &Manager, job_id: &str, port: u16) -> Result<StatusCode, String> {
    let request = hyper::Request::post(format!("http://127.0.0.1:{port}/cancel"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {}", pool.token))
        .body(Full::from(json!({"job_id": job_id}).to_string()))
        .map_err(|e| e.to_string())?;
    pool.client.request(request).await.map(|response| response.status()).map_err(|e| with_sources(&e))
}
