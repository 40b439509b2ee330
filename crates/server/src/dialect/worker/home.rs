//! Telling whoever started the worker that it is ready, and from then on that it is still there.

use super::{Member, standing};
use crate::app::App;
use crate::listen::Bound;
use axum::http::{Method, StatusCode};
use sconce_api::client::{Answer, Call, Client, client};
use sconce_api::time::rfc3339;
use sconce_api::worker::{Alive, Called, Capabilities, Heartbeat};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The first wait after a callback that did not arrive; twice as long after each further one.
const FIRST: Duration = Duration::from_millis(250);
/// At most.
const MOST: Duration = Duration::from_secs(15);
/// For an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Heartbeats that a manager may disown before the worker believes that it is nobody's, and ends.
const DISOWNED: u32 = 3;

/// What came of a callback.
enum Heard {
    Yes,
    /// There is a manager, and it does not know us.
    Disowned,
    No(String),
}

/// Runs as long as the worker does.
pub(crate) async fn report(app: Arc<App>, member: Arc<Member>, bound: Bound) {
    let mut changes = app.house.changes();
    app.house.settled().await;
    // Ready, or failed: then there is nothing to tell, and the process ends.
    let served = loop {
        match app.house.list().into_iter().next().map(|shown| shown.served) {
            Some(Some(served)) => break served,
            Some(None) if app.house.ready().is_ok() => {}
            _ => return,
        }
        if changes.changed().await.is_err() {
            return;
        }
    };
    let looked = {
        let (member, served) = (member.clone(), served.clone());
        tokio::task::spawn_blocking(move || member.look(&served).device.clone()).await
    };
    drop(served);
    let Ok(device) = looked else { return };
    let launch = &member.membership.launch;
    if launch.is_dry_run() {
        tracing::info!("ready; a dry run, nobody is told");
        return;
    }
    let port = match bound {
        Bound::Tcp(address) => address.port(),
        Bound::Unix(_) => 0,
    };
    let home = Home { url: launch.callback_url.clone(), key: member.membership.key.clone(), client: client() };
    let called = Called {
        worker_id: launch.worker_id.clone(),
        vram_bytes: member.vram_bytes(),
        uri: bound.to_string(),
        model_ref: launch.model.clone(),
        capabilities: Capabilities::of(&device).capabilities,
    };
    let (mut wait, mut disowned) = (FIRST, 0);
    loop {
        match home.tell(&called).await {
            Heard::Yes => break tracing::info!("ready; {} was told", home.url),
            Heard::Disowned => {
                disowned += 1;
                if home.is_lost(disowned) {
                    return app.stop.drain();
                }
            }
            Heard::No(why) => tracing::warn!("{} was not told: {why}; trying again in {wait:?}", home.url),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(MOST);
    }
    disowned = 0;
    loop {
        tokio::time::sleep(member.membership.beat).await;
        let state = standing(&app).state;
        let status = if state == "ready" && member.jobs.len() > 0 { "busy".to_string() } else { state };
        let worker = Alive {
            id: launch.worker_id.clone(),
            model_id: launch.model.clone(),
            device: device.clone(),
            port,
            status,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        match home.tell(&Heartbeat { worker, timestamp: rfc3339(SystemTime::now()) }).await {
            Heard::Yes => disowned = 0,
            // A manager that is down may come back and wants us then.
            Heard::No(why) => tracing::warn!("a heartbeat did not arrive: {why}"),
            Heard::Disowned => {
                disowned += 1;
                if home.is_lost(disowned) {
                    return app.stop.drain();
                }
            }
        }
    }
}

/// Whoever started us.
struct Home {
    url: String,
    key: Option<String>,
    client: Client,
}

impl Home {
    /// Whether it has said so often enough that it does not know us.
    fn is_lost(&self, disowned: u32) -> bool {
        tracing::warn!("{} does not know this worker ({disowned} of {DISOWNED})", self.url);
        let lost = disowned >= DISOWNED;
        if lost {
            tracing::error!("nobody's worker: ending");
        }
        lost
    }

    async fn tell(&self, body: &impl Serialize) -> Heard {
        let body = match serde_json::to_vec(body) {
            Ok(body) => body,
            Err(e) => return Heard::No(e.to_string()),
        };
        let call = Call {
            method: Method::POST,
            url: &self.url,
            key: self.key.as_deref(),
            body: Some(body),
            within: Some(PATIENCE),
            largest: 4096,
        };
        let Answer { status, body } = match call.send(&self.client).await {
            Ok(answer) => answer,
            Err(lost) => return Heard::No(lost.why),
        };
        let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
        match status {
            status if status.is_success() => Heard::Yes,
            StatusCode::NOT_FOUND if text.contains("WORKER_NOT_FOUND") => Heard::Disowned,
            status => Heard::No(format!("it answered {status}: {text}")),
        }
    }
}
