//! `/v1/jobs`: one request creates a job, another streams its events from the same worker. In
//! between, the job counts as load of its worker, for a limited time.

use super::Peer;
use super::messages::{Dialect, error_response, error_response_with_status};
use super::proxy::{cancel_everywhere, end_to_end_headers, relay_response, send, with_worker};
use super::relay::RequestGuard;
use crate::manager::Manager;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Version};
use axum::response::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use sconce_api::pool::{Code, Failure};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Largest response of a worker to `POST /v1/jobs`, in bytes.
const MAX_CREATED: usize = 64 << 10;

/// Jobs whose events nobody has collected yet, by id. Each worker limits the number of its own.
#[derive(Default)]
pub(crate) struct WaitingJobs(Mutex<HashMap<String, WaitingJob>>);

struct WaitingJob {
    guard: RequestGuard,
    port: u16,
    expiry: AbortHandle,
}

impl WaitingJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, WaitingJob>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The response to `POST /v1/jobs`. If the worker has created the job, it waits for a client.
pub(super) async fn created(response: axum::http::Response<Incoming>, guard: RequestGuard, port: u16) -> Response {
    let (parts, body) = response.into_parts();
    let body: Bytes = match Limited::new(body, MAX_CREATED).collect().await {
        Ok(body) => body.to_bytes(),
        Err(e) => {
            let what = format!("the response of worker {} broke off: {e}; send the request again", guard.id);
            return error_response(&Failure::new(Code::WorkerFailed, what), Dialect::Worker);
        }
    };
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = with_worker(end_to_end_headers(&parts.headers), &guard.id);
    let (pool, job) = (guard.pool.clone(), guard.job.clone());
    if let Some(id) = job.filter(|_| parts.status.is_success()) {
        let worker = guard.id.clone();
        if let Err(other) = wait_for_client(&pool, &id, guard, port) {
            // Two requests created the job at once. By its id, it can be cancelled at another
            // worker only.
            if other != worker {
                cancel_everywhere(&pool, &id, &[worker]).await;
            }
            return waits_already(&id);
        }
    }
    answer
}

/// The response to a request to create a job that waits for a client already.
pub(super) fn refusal(pool: &Manager, id: &str) -> Option<Response> {
    pool.waiting_jobs.lock().contains_key(id).then(|| waits_already(id))
}

fn waits_already(id: &str) -> Response {
    let what = format!("a job `{id}` waits for GET /v1/jobs/{{id}}/stream; choose another `job_id`");
    error_response_with_status(&Failure::new(Code::InvalidRequest, what), Dialect::Worker, StatusCode::CONFLICT)
}

/// Keeps the load of a job until a client collects its events, or its lifetime ends. If another job
/// with this id waits, fails with the worker of that job.
fn wait_for_client(pool: &Arc<Manager>, id: &str, guard: RequestGuard, port: u16) -> Result<(), String> {
    let mut waiting = pool.waiting_jobs.lock();
    let vacant = match waiting.entry(id.into()) {
        Entry::Vacant(vacant) => vacant,
        Entry::Occupied(other) => return Err(other.get().guard.id.clone()),
    };
    let (manager, job, lifetime) = (pool.clone(), id.to_owned(), pool.config.job_lifetime);
    let expiry = tokio::spawn(async move {
        tokio::time::sleep(lifetime).await;
        // Dropped after the lock is released: its drop locks the core. The worker cancels the job
        // by itself.
        let expired = manager.waiting_jobs.lock().remove(&job);
        drop(expired);
    });
    vacant.insert(WaitingJob { guard, port, expiry: expiry.abort_handle() });
    Ok(())
}

/// `GET /v1/jobs/{id}/stream`: from the worker that runs the job.
pub(crate) async fn stream(State(pool): State<Arc<Manager>>, Path(id): Path<String>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let waiting = pool.waiting_jobs.lock().remove(&id);
    let Some(WaitingJob { mut guard, port, expiry }) = waiting else { return unknown(&pool, &id) };
    expiry.abort();
    guard.peer = parts.extensions.get::<Peer>().filter(|_| parts.version < Version::HTTP_2).cloned();
    match send(&pool, &parts, Bytes::new(), port).await {
        Ok(response) => relay_response(response, guard, Dialect::Worker),
        Err(failure) => {
            pool.decide(|core, now| ((), core.probe_now(&guard.id, now)));
            let what = format!("worker {} did not answer: {}; create the job again", guard.id, failure.why);
            error_response(&Failure::new(Code::WorkerFailed, what), Dialect::Worker)
        }
    }
}

fn unknown(pool: &Manager, id: &str) -> Response {
    let (what, status) = match pool.workers_of_job(id).is_empty() {
        false => (
            format!("the events of the job `{id}` are already being streamed; a job has one stream"),
            StatusCode::CONFLICT,
        ),
        true => {
            let seconds = pool.config.job_lifetime.as_secs_f64();
            let what = format!(
                "there is no job `{id}`: it was never created, its events were streamed already, or nobody streamed \
                 them within {seconds} s; create it with POST /v1/jobs"
            );
            (what, StatusCode::NOT_FOUND)
        }
    };
    error_response_with_status(&Failure::new(Code::InvalidRequest, what), Dialect::Worker, status)
}

/// `DELETE /v1/jobs/{id}`: the same as `POST /cancel`.
pub(crate) async fn cancel(State(pool): State<Arc<Manager>>, Path(id): Path<String>) -> Response {
    super::proxy::cancel_job(&pool, &id).await
}
