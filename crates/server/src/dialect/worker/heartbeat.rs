//! The worker's callback and heartbeat: reports to the pool manager that the worker is ready, then
//! periodically that it is alive.

use super::{Member, readiness};
use crate::app::App;
use crate::listen::Bound;
use axum::http::{Method, StatusCode};
use sconce_api::client::{Answer, Call, Client, client_for};
use sconce_api::time::rfc3339;
use sconce_api::worker::{Alive, Capabilities, HEARTBEAT_PATH, Heartbeat, ReadyCallback};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Backoff after the first failed callback; doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Longest backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// Time-out of a callback.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Callbacks in a row that the manager may reject as from an unknown worker before the worker ends.
const MAX_REJECTIONS: u32 = 3;

/// Result of a callback.
enum Delivery {
    Accepted,
    /// The manager answered that it does not know this worker.
    UnknownWorker,
    Failed(String),
}

/// Sends the callback, then heartbeats, as long as the worker runs.
pub(crate) async fn report(app: Arc<App>, member: Arc<Member>, bound: Bound) {
    let mut changes = app.models.changes();
    app.models.settled().await;
    // Wait until ready. If loading failed there is nothing to report, and the process ends.
    let served = loop {
        match app.models.list().into_iter().next().map(|summary| summary.served) {
            Some(Some(served)) => break served,
            Some(None) if app.models.ready().is_ok() => {}
            _ => return,
        }
        if changes.changed().await.is_err() {
            return;
        }
    };
    let facts = {
        let (member, served) = (member.clone(), served.clone());
        tokio::task::spawn_blocking(move || member.facts(&served).device.clone()).await
    };
    drop(served);
    let Ok(device) = facts else { return };
    let launch = &member.membership.launch;
    if launch.is_dry_run() {
        tracing::info!("ready; dry run: no callback is sent");
        return;
    }
    let port = match bound {
        Bound::Tcp { address, .. } => address.port(),
        Bound::Unix(_) => 0,
    };
    let url = launch.callback_url.clone();
    let client = match client_for(&url) {
        Ok(client) => client,
        Err(why) => return tracing::error!("cannot send the callback to {url}: {why}"),
    };
    let callback = CallbackClient { url, key: member.membership.key.clone(), client };
    let ready = ReadyCallback {
        worker_id: launch.worker_id.clone(),
        vram_bytes: member.vram_bytes(),
        uri: bound.to_string(),
        model_ref: launch.model.clone(),
        capabilities: Capabilities::of(&device).capabilities,
    };
    let (mut backoff, mut rejections) = (FIRST_BACKOFF, 0);
    loop {
        match callback.post(&callback.url, &ready).await {
            Delivery::Accepted => break tracing::info!("ready; callback sent to {}", callback.url),
            Delivery::UnknownWorker => {
                rejections += 1;
                if callback.gives_up(rejections) {
                    return app.stop.drain();
                }
            }
            Delivery::Failed(why) => {
                tracing::warn!("cannot send the callback to {}: {why}; retrying in {backoff:?}", callback.url)
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
    rejections = 0;
    let heartbeat_url = heartbeat_url(&callback.url);
    loop {
        tokio::time::sleep(member.membership.beat).await;
        let state = readiness(&app).state;
        let status = if state == "ready" && member.jobs.running() > 0 { "busy".to_string() } else { state };
        let worker = Alive {
            id: launch.worker_id.clone(),
            model_id: launch.model.clone(),
            device: device.clone(),
            port,
            status,
            implementation: "sconce".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let heartbeat = Heartbeat { worker, timestamp: rfc3339(SystemTime::now()) };
        match callback.post(&heartbeat_url, &heartbeat).await {
            Delivery::Accepted => rejections = 0,
            // Continue: the manager may be restarting and will adopt this worker.
            Delivery::Failed(why) => tracing::warn!("cannot send a heartbeat: {why}"),
            Delivery::UnknownWorker => {
                rejections += 1;
                if callback.gives_up(rejections) {
                    return app.stop.drain();
                }
            }
        }
    }
}

/// The URL of heartbeats: [`HEARTBEAT_PATH`] on the host of the callback URL.
fn heartbeat_url(callback_url: &str) -> String {
    let authority = callback_url.find("://").map_or(0, |at| at + 3);
    let end = callback_url[authority..].find(['/', '?', '#']).map_or(callback_url.len(), |at| authority + at);
    format!("{}{HEARTBEAT_PATH}", &callback_url[..end])
}

/// Client for the callback URL of the pool manager.
struct CallbackClient {
    url: String,
    key: Option<String>,
    client: Client,
}

impl CallbackClient {
    /// Whether the manager has rejected this worker often enough that it must end.
    fn gives_up(&self, rejections: u32) -> bool {
        tracing::warn!("{} does not know this worker ({rejections} of {MAX_REJECTIONS})", self.url);
        let gives_up = rejections >= MAX_REJECTIONS;
        if gives_up {
            tracing::error!("rejected by the manager: the worker ends");
        }
        gives_up
    }

    async fn post(&self, url: &str, body: &impl Serialize) -> Delivery {
        let body = match serde_json::to_vec(body) {
            Ok(body) => body,
            Err(e) => return Delivery::Failed(e.to_string()),
        };
        let call = Call {
            method: Method::POST,
            url,
            key: self.key.as_deref(),
            body: Some(body),
            within: Some(TIMEOUT),
            largest: 4096,
        };
        let Answer { status, body } = match call.send(&self.client).await {
            Ok(answer) => answer,
            Err(lost) => return Delivery::Failed(lost.why),
        };
        let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
        match status {
            status if status.is_success() => Delivery::Accepted,
            StatusCode::NOT_FOUND if text.contains("WORKER_NOT_FOUND") => Delivery::UnknownWorker,
            status => Delivery::Failed(format!("status {status}: {text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_go_to_their_own_path_on_the_callback_host() {
        for (callback, want) in [
            ("http://127.0.0.1:9200/v2/internal/workers/ready", "http://127.0.0.1:9200/v1/worker-heartbeat"),
            ("https://pool.example", "https://pool.example/v1/worker-heartbeat"),
            ("https://[::1]:1?a=/b", "https://[::1]:1/v1/worker-heartbeat"),
        ] {
            assert_eq!(heartbeat_url(callback), want);
        }
    }
}
