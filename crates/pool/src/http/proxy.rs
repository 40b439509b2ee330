//! Requests on their way to workers. One that a worker did not begin to answer goes to another one; one that it did, never: half
//! of the answer may be with the client.

use super::Peer;
use super::brief::{Brief, tasks};
use super::relay::{Held, Relay};
use super::words::{Dialect, answer, answer_with};
use crate::core::{Ask, NoRoute};
use crate::manager::Manager;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header, request::Parts};
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

/// Workers on which a request may break before it is the request that is thought to be at fault.
const BREAKS: usize = 2;
/// For a worker to hear that a job is cancelled.
const CANCEL: Duration = Duration::from_secs(1);
/// Of one connection, not of a request.
const HOPS: [HeaderName; 7] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// Everything that is not the manager's own.
pub(crate) async fn pass(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let dialect = Dialect::of(path);
    if tasks(path).is_none() {
        let what =
            format!("there is nothing at {path}; models are asked at the paths of OpenAI, TEI, Cohere and /execute");
        let failure = Failure::new(Code::InvalidRequest, what);
        return answer_with(&failure, dialect, StatusCode::NOT_FOUND);
    }
    match read(&pool, body).await {
        Ok(body) => route(&pool, &parts, body, dialect).await,
        Err((status, what)) => answer_with(&Failure::new(Code::InvalidRequest, what), dialect, status),
    }
}

/// The whole body: it must be there twice if the first worker fails.
pub(super) async fn read(pool: &Manager, body: Body) -> Result<Bytes, (StatusCode, String)> {
    let (limit, patience) = (pool.config.payload_limit, pool.config.patience);
    match tokio::time::timeout(patience, Limited::new(body, limit).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
            let what = format!("the body is larger than {limit} bytes; send less at once, or raise payload_limit");
            Err((StatusCode::PAYLOAD_TOO_LARGE, what))
        }
        Ok(Err(e)) => Err((StatusCode::BAD_REQUEST, format!("the body could not be read: {e}"))),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {} s", patience.as_secs()))),
    }
}

async fn route(pool: &Arc<Manager>, parts: &Parts, body: Bytes, dialect: Dialect) -> Response {
    let brief = Brief::of(parts.uri.path(), &body);
    let (mut tried, mut last): (Vec<String>, Option<Response>) = (Vec::new(), None);
    // An answer that HTTP/1 cannot get rid of stops the whole connection; others of HTTP/2 go on beside it.
    let peer = parts.extensions.get::<Peer>().filter(|_| parts.version < Version::HTTP_2);
    let mut broken = 0;
    loop {
        let ask = Ask {
            model: brief.model.as_deref(),
            tasks: brief.tasks,
            prefixes: &brief.prefixes,
            tokens: brief.tokens,
            tried: &tried,
        };
        let target = match pool.core().begin(&ask) {
            Ok(target) => target,
            Err(_) if last.is_some() => return last.unwrap_or_default(),
            Err(why) => return nowhere(&why, dialect),
        };
        let job = brief.job.clone();
        if let Some(job) = &job {
            pool.remember(job, &target.id);
        }
        let held = Held { pool: pool.clone(), id: target.id.clone(), tokens: brief.tokens, job, peer: peer.cloned() };
        tried.push(target.id.clone());
        if tried.len() > 1 {
            pool.counts.retries.fetch_add(1, Ordering::Relaxed);
        }
        match send(pool, parts, body.clone(), target.port).await {
            Ok(response) if is_busy(response.status()) => last = Some(relayed(response, held, dialect)),
            Ok(response) => return relayed(response, held, dialect),
            Err(broke) => {
                let why = broke.why;
                tracing::warn!(worker = target.id, "did not answer: {why}");
                drop(held);
                pool.decide(|core, now| ((), core.doubt(&target.id, now)));
                let what = format!("no worker of `{}` answered; the last said: {why}", target.model);
                let failed = answer(&Failure::new(Code::WorkerFailed, what), dialect);
                // It may have been the request that broke the worker. It must not go from one to the next until none is left.
                broken += usize::from(broke.was_sent);
                if broken >= BREAKS {
                    return failed;
                }
                last.get_or_insert(failed);
            }
        }
    }
}

/// Whether another worker may do better.
fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS
}

/// Why there is no answer.
struct Broke {
    why: String,
    /// Whether the worker may have had the request.
    was_sent: bool,
}

async fn send(pool: &Manager, parts: &Parts, body: Bytes, port: u16) -> Result<axum::http::Response<Incoming>, Broke> {
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let mut request =
        hyper::Request::builder().method(parts.method.clone()).uri(format!("http://127.0.0.1:{port}{path}"));
    if let Some(headers) = request.headers_mut() {
        *headers = between(&parts.headers);
        [header::HOST, header::CONTENT_LENGTH, header::EXPECT].iter().for_each(|h| drop(headers.remove(h)));
        if let Ok(key) = HeaderValue::from_str(&format!("Bearer {}", pool.token)) {
            headers.insert(header::AUTHORIZATION, key);
        }
    }
    let request = request.body(Full::new(body)).map_err(|e| Broke { why: e.to_string(), was_sent: false })?;
    pool.client.request(request).await.map_err(|e| Broke { why: with_sources(&e), was_sent: !e.is_connect() })
}

/// Headers less those that are about one connection.
fn between(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(',').map(|n| n.trim().to_lowercase()))
        .collect();
    let stays = |name: &HeaderName| {
        !HOPS.contains(name) && name.as_str() != "keep-alive" && !named.iter().any(|n| n == name.as_str())
    };
    headers.iter().filter(|(name, _)| stays(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

fn relayed(response: axum::http::Response<Incoming>, held: Held, dialect: Dialect) -> Response {
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let events = kind.starts_with("text/event-stream").then_some(dialect);
    let mut headers = between(&parts.headers);
    if let Ok(id) = HeaderValue::from_str(&held.id) {
        headers.insert(HeaderName::from_static("x-sconce-worker"), id);
    }
    let mut answer = Response::new(Body::new(Relay::new(body, held, events)));
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = headers;
    answer
}

/// Why a request goes nowhere.
fn nowhere(why: &NoRoute, dialect: Dialect) -> Response {
    let list = |names: &[String]| if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let failure = match why {
        NoRoute::Unknown { model, names } => {
            let what = format!("there is no model `{model}` here; there is {}", list(names));
            Failure { details: json!({"models": names}), ..Failure::new(Code::ModelNotFound, what) }
        }
        NoRoute::Unnamed { names } => {
            let what =
                format!("there are several models here, and the request names none; name one of {}", list(names));
            Failure { details: json!({"models": names}), ..Failure::new(Code::InvalidRequest, what) }
        }
        NoRoute::NotReady { model, why } => {
            let what = format!("no worker of `{model}` takes requests now ({why}); come again in a moment");
            Failure::new(Code::WorkerUnavailable, what)
        }
    };
    answer(&failure, dialect)
}

/// `POST /cancel`: goes to the worker that has the job. Nobody having it is as good.
pub(crate) async fn cancel(State(pool): State<Arc<Manager>>, request: Request) -> Response {
    let body = match read(&pool, request.into_body()).await {
        Ok(body) => body,
        Err((status, what)) => {
            return answer_with(&Failure::new(Code::InvalidRequest, what), Dialect::Worker, status);
        }
    };
    let Ok(sconce_api::worker::Cancel { job_id }) = serde_json::from_slice(&body) else {
        let failure = Failure::new(Code::InvalidRequest, "the body must be {\"job_id\": \"…\"}");
        return answer(&failure, Dialect::Worker);
    };
    let (who, serving) = (pool.who_has(&job_id), pool.core().serving());
    let told = serving.iter().filter(|(id, ..)| who.contains(id)).map(|(id, _, port)| {
        let (pool, job_id) = (&pool, &job_id);
        async move {
            let why = match tokio::time::timeout(CANCEL, cancel_at(pool, job_id, *port)).await {
                Ok(Ok(status)) if status.is_success() => return,
                Ok(Ok(status)) => format!("it answered {status}"),
                Ok(Err(why)) => why,
                Err(_) => format!("no answer within {CANCEL:?}"),
            };
            tracing::warn!(worker = id, job = job_id, "a cancellation did not arrive: {why}");
        }
    });
    join_all(told).await;
    (StatusCode::ACCEPTED, axum::Json(json!({"job_id": job_id, "status": "cancelling"}))).into_response()
}

async fn cancel_at(pool: &Manager, job_id: &str, port: u16) -> Result<StatusCode, String> {
    let request = hyper::Request::post(format!("http://127.0.0.1:{port}/cancel"))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {}", pool.token))
        .body(Full::from(json!({"job_id": job_id}).to_string()))
        .map_err(|e| e.to_string())?;
    pool.client.request(request).await.map(|response| response.status()).map_err(|e| with_sources(&e))
}
