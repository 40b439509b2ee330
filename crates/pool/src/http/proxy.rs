//! Requests on their way to workers. One that a worker did not begin to answer goes to another one; one that it did, never: half
//! of the answer may be with the client.

use super::brief::{Brief, tasks};
use super::relay::{Held, Relay};
use super::words::{Dialect, answer, answer_with};
use crate::client::said;
use crate::core::{Ask, NoRoute};
use crate::manager::Manager;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use sconce_api::pool::{Code, Failure};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a body may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
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
    let limit = pool.config.payload_limit;
    match tokio::time::timeout(PATIENCE, Limited::new(body, limit).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
            let what = format!("the body is larger than {limit} bytes; send less at once, or raise payload_limit");
            Err((StatusCode::PAYLOAD_TOO_LARGE, what))
        }
        Ok(Err(e)) => Err((StatusCode::BAD_REQUEST, format!("the body could not be read: {e}"))),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {} s", PATIENCE.as_secs()))),
    }
}

async fn route(pool: &Arc<Manager>, parts: &Parts, body: Bytes, dialect: Dialect) -> Response {
    let brief = Brief::of(parts.uri.path(), &body);
    let (mut tried, mut last): (Vec<String>, Option<Response>) = (Vec::new(), None);
    loop {
        let ask = Ask {
            model: brief.model.as_deref(),
            tasks: brief.tasks,
            prefix: brief.prefix,
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
        let held = Held { pool: pool.clone(), id: target.id.clone(), tokens: brief.tokens, job };
        tried.push(target.id.clone());
        if tried.len() > 1 {
            pool.counts.retries.fetch_add(1, Ordering::Relaxed);
        }
        match send(pool, parts, body.clone(), target.port).await {
            Ok(response) if is_busy(response.status()) => last = Some(relayed(response, held, dialect)),
            Ok(response) => return relayed(response, held, dialect),
            Err(why) => {
                tracing::warn!(worker = target.id, "did not answer: {why}");
                drop(held);
                pool.decide(|core, now| ((), core.doubt(&target.id, now)));
                let what = format!("no worker of `{}` answered; the last said: {why}", target.model);
                last.get_or_insert_with(|| answer(&Failure::new(Code::WorkerFailed, what), dialect));
            }
        }
    }
}

/// Whether another worker may do better.
fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS
}

async fn send(pool: &Manager, parts: &Parts, body: Bytes, port: u16) -> Result<axum::http::Response<Incoming>, String> {
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
    let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
    pool.client.request(request).await.map_err(|e| said(&e))
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
    let (mut parts, body) = request.into_parts();
    let body = match read(&pool, body).await {
        Ok(body) => body,
        Err((status, what)) => {
            return answer_with(&Failure::new(Code::InvalidRequest, what), Dialect::Worker, status);
        }
    };
    let Ok(sconce_api::worker::Cancel { job_id }) = serde_json::from_slice(&body) else {
        let failure = Failure::new(Code::InvalidRequest, "the body must be {\"job_id\": \"…\"}");
        return answer(&failure, Dialect::Worker);
    };
    parts.method = Method::POST;
    for id in pool.who_has(&job_id) {
        let port = pool.core().serving().into_iter().find(|(w, ..)| *w == id).map(|(_, _, port)| port);
        if let Some(port) = port
            && let Err(why) = send(&pool, &parts, body.clone(), port).await
        {
            tracing::warn!(worker = id, job = job_id, "a cancellation did not arrive: {why}");
        }
    }
    (StatusCode::ACCEPTED, axum::Json(json!({"job_id": job_id, "status": "cancelling"}))).into_response()
}
