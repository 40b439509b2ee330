//! Connections to the servers on other hosts, and probes of them.

use crate::core::{HostProbe, ServedModel};
use crate::host_config::HostConfig;
use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use sconce_api::client::{Client, RemoteClients, RequestError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Names the managers that a request has passed, so that it cannot go in a circle.
pub(crate) const PASSED: HeaderName = HeaderName::from_static("x-sconce-pool");
/// Largest page of a host, in bytes. A host may be hostile.
const MAX_PAGE: usize = 4 << 20;
/// Names of models in a message, and characters of each.
const MAX_SHOWN: (usize, usize) = (20, 64);
/// Longest task or device that a host may report.
const MAX_WORD: usize = 32;

/// The hosts of a manager, by name.
pub(crate) type Hosts = BTreeMap<String, Arc<Host>>;

/// A server on another host.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) url: String,
    /// `Authorization` of requests.
    pub(crate) authorization: Option<HeaderValue>,
    /// Id of this manager.
    pub(crate) manager: Option<HeaderValue>,
    /// Time-out of a request.
    pub(crate) request_timeout: Option<Duration>,
    models: Vec<String>,
    clients: RemoteClients,
    client: Mutex<Client>,
    /// When anything was last received.
    last_activity: Mutex<Option<Instant>>,
    /// How often the host was lost.
    losses: watch::Sender<u64>,
    /// How often the responses that had begun were ended.
    ends: watch::Sender<u64>,
}

/// The hosts of a configuration. `manager` is the id of this manager.
pub(crate) fn hosts(configs: &[HostConfig], manager: &str) -> Hosts {
    configs.iter().map(|config| (config.spec.name.clone(), Arc::new(Host::new(config, manager)))).collect()
}

impl Host {
    fn new(config: &HostConfig, manager: &str) -> Host {
        Host {
            name: config.spec.name.clone(),
            url: config.spec.url.clone(),
            authorization: config.authorization.clone(),
            manager: HeaderValue::from_str(manager).ok(),
            request_timeout: config.request_timeout,
            models: config.spec.models.iter().map(|(_, model)| model.clone()).collect(),
            clients: config.clients.clone(),
            client: Mutex::new(config.clients.client()),
            last_activity: Mutex::new(None),
            losses: watch::Sender::new(0),
            ends: watch::Sender::new(0),
        }
    }

    /// A client with the open connections to the host.
    pub(crate) fn client(&self) -> Client {
        self.locked_client().clone()
    }

    fn locked_client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the host has sent something.
    pub(crate) fn record_activity(&self) {
        *self.locked_last_activity() = Some(Instant::now());
    }

    fn was_active_since(&self, time: Instant) -> bool {
        self.locked_last_activity().is_some_and(|last| last >= time)
    }

    fn locked_last_activity(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the idle connections. After a while of silence they may be dead, which a request
    /// would find out only by its time-out.
    fn drop_idle_connections(&self) {
        *self.locked_client() = self.clients.client();
    }

    /// Moves the requests that wait for the host to other workers.
    pub(crate) fn mark_lost(&self) {
        self.drop_idle_connections();
        self.losses.send_modify(|n| *n += 1);
    }

    /// Ends the responses that have begun.
    pub(crate) fn end_responses(&self) {
        self.ends.send_modify(|n| *n += 1);
    }

    /// Notified when the host is lost after this call.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// Notified when responses that have begun must end after this call.
    pub(crate) fn ends(&self) -> watch::Receiver<u64> {
        self.ends.subscribe()
    }

    /// Gets a page of the host.
    pub(crate) async fn page(&self, path: &str, within: Duration) -> Result<(StatusCode, Bytes), RequestError> {
        let mut request = Request::get(format!("{}{path}", self.url));
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.authorization.clone().map(|key| (header::AUTHORIZATION, key)));
            headers.extend(self.manager.clone().map(|id| (PASSED, id)));
        }
        let request = request.body(Full::default()).map_err(|e| RequestError::theirs(e.to_string()))?;
        let answer = async {
            let response = self.client().request(request).await.map_err(|e| RequestError::of(&e))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
            Ok((status, body.map_err(|e| RequestError::theirs(e.to_string()))?.to_bytes()))
        };
        let late = |_| RequestError::theirs(format!("no response of {path} within {within:?}"));
        tokio::time::timeout(within, answer).await.map_err(late)?
    }

    /// Probes the host. With `models`, reads which of its models it serves.
    pub(crate) async fn probe(&self, models: bool, within: Duration) -> HostProbe {
        let started = Instant::now();
        let lost = match self.try_probe(models, within).await {
            Ok(result) => return result,
            Err(lost) => lost,
        };
        if lost.ours {
            tracing::warn!(host = self.name, "cannot send a probe: {}", lost.why);
            return HostProbe::NotSent;
        }
        // A busy host may answer a probe late while its responses still arrive.
        if self.was_active_since(started) {
            return HostProbe::Healthy;
        }
        self.drop_idle_connections();
        let hint =
            if lost.why.contains("invalid peer certificate") { "; or set `ca` or `pin` in pool.toml" } else { "" };
        HostProbe::Missed(lost.why + hint)
    }

    async fn try_probe(&self, models: bool, within: Duration) -> Result<HostProbe, RequestError> {
        // Any answer shows that the host can be reached; it is not 200 while a model loads.
        let (status, _) = self.page("/health", within).await?;
        if status.is_success() && !models {
            return Ok(HostProbe::Healthy);
        }
        let (status, body) = self.page("/v1/models", within).await?;
        if is_refusal(status) {
            return Ok(HostProbe::Refused(refused(&self.name, status)));
        }
        if !status.is_success() {
            return Err(RequestError::theirs(refused("GET /v1/models", status)));
        }
        let wrong = |e: serde_json::Error| RequestError::theirs(format!("invalid response of /v1/models: {e}"));
        let list: ModelList = serde_json::from_slice(&body).map_err(wrong)?;
        let is_served = |name: &&String| list.data.iter().any(|model| model.id == **name);
        let mut served: Vec<ServedModel> = self
            .models
            .iter()
            .filter(is_served)
            .map(|name| ServedModel { name: name.clone(), ..ServedModel::default() })
            .collect();
        if !served.is_empty() {
            self.add_info(&mut served, within).await;
        }
        Ok(HostProbe::Serves { models: served, all: shown(&list) })
    }

    /// Adds tasks and devices from `/info`. Without them, requests must name a model.
    async fn add_info(&self, served: &mut [ServedModel], within: Duration) {
        let Ok((StatusCode::OK, body)) = self.page("/info", within).await else { return };
        let Ok(info) = serde_json::from_slice::<Info>(&body) else { return };
        for model in served {
            let Some(about) = info.models.iter().find(|about| about.id == model.name) else { continue };
            model.task = about.task.clone().filter(|word| is_word(word));
            model.device = about.device.clone().filter(|word| is_word(word));
        }
    }
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

#[derive(Deserialize)]
struct ModelEntry {
    id: String,
}

#[derive(Deserialize)]
struct Info {
    models: Vec<AboutModel>,
}

#[derive(Deserialize)]
struct AboutModel {
    id: String,
    #[serde(default)]
    task: Option<String>,
    #[serde(default)]
    device: Option<String>,
}

/// Whether a host that answers with this status refuses the requests of this pool.
pub(crate) fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::LOOP_DETECTED)
}

/// Why a status means that the host cannot be used.
pub(crate) fn refused(what: &str, status: StatusCode) -> String {
    let why = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "it refuses the key of this pool; correct `key_env` or `key_file` in pool.toml"
        }
        StatusCode::LOOP_DETECTED => "its `url` leads back to this pool",
        status if status.is_redirection() => {
            "it answers with a redirect, which is not followed; correct `url` in pool.toml"
        }
        _ => return format!("{what}: status {status}"),
    };
    format!("{what}: {why} (status {status})")
}

/// The names of models, for a message.
fn shown(list: &ModelList) -> String {
    let (most, longest) = MAX_SHOWN;
    let plain = |name: &str| name.chars().filter(|c| !c.is_control()).take(longest).collect::<String>();
    let mut names: Vec<String> = list.data.iter().take(most).map(|model| plain(&model.id)).collect();
    match list.data.len() {
        0 => "none".into(),
        n => {
            names.extend((n > most).then(|| format!("and {} more", n - most)));
            names.join(", ")
        }
    }
}

/// Whether a host's word for a task or device can be shown and compared.
fn is_word(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":._-".contains(c);
    !word.is_empty() && word.len() <= MAX_WORD && word.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_host_are_bounded_in_messages() {
        let list = |names: Vec<String>| ModelList { data: names.into_iter().map(|id| ModelEntry { id }).collect() };
        assert_eq!(shown(&list(vec![])), "none");
        assert_eq!(shown(&list(vec!["a".into(), "b\n\u{1b}[2J".into()])), "a, b[2J");
        let many = shown(&list((0..1000).map(|n| format!("{n}-{}", "x".repeat(1000))).collect()));
        assert!(many.len() < 2_000 && many.ends_with("and 980 more"), "{many}");
        assert!(is_word("cuda:0") && !is_word("") && !is_word("a b") && !is_word(&"x".repeat(33)));
    }
}
