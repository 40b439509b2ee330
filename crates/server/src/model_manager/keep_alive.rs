//! How long idle models stay loaded, and waiting for a model that is not loaded yet.

use super::{Entry, Lease, ModelHandle, ModelManager, ModelSpec, ModelSummary, State};
use crate::error::{Fault, FaultKind};
use crate::served_model::RequestKind;
use sconce_api::ollama::KeepAlive;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl ModelManager {
    /// Adds a model that the first request for it loads. Does nothing if a model has its name.
    pub(crate) fn add_unloaded(&self, spec: ModelSpec) {
        {
            let mut entries = self.entries();
            if entries.iter().any(|e| e.spec.is_called(&spec.id)) {
                return;
            }
            entries.push(Entry::unloaded(spec, false));
        }
        self.changed();
    }

    /// Sets how long a model stays loaded after its last request. The setting holds until the model
    /// is unloaded. Returns false if there is no such model.
    pub(crate) fn keep_alive(&self, name: &str, keep_alive: KeepAlive) -> bool {
        let idle = {
            let mut entries = self.entries();
            let Some(entry) = entries.iter_mut().find(|e| e.spec.is_called(name)) else { return false };
            entry.keep_alive = Some(keep_alive);
            entry.take_idle(None)
        };
        self.retire(idle.into_iter().collect());
        true
    }

    /// Unloads models that had no request for longer than their `keep_alive`, or else than `limit`
    /// (--idle-timeout).
    pub(crate) fn unload_idle(&self, limit: Option<Duration>) {
        let idle: Vec<ModelHandle> = self.entries().iter_mut().filter_map(|entry| entry.take_idle(limit)).collect();
        self.retire(idle);
    }

    /// Drops models that were taken out of their entries.
    pub(super) fn retire(&self, models: Vec<ModelHandle>) {
        if !models.is_empty() {
            self.changed();
        }
    }

    /// Leases a model like [`ModelManager::lease`], and loads it and waits for it if it is not loaded,
    /// at most until `deadline`.
    pub(crate) async fn lease_loaded(
        self: &Arc<Self>,
        name: &str,
        kind: RequestKind,
        deadline: Option<Instant>,
    ) -> Result<Lease, Fault> {
        let mut changes = self.changes();
        loop {
            let loading = match self.lease(Some(name), kind) {
                Err(fault) if fault.kind == FaultKind::Loading => fault,
                done => return done,
            };
            let changed = match deadline {
                None => changes.changed().await,
                // The fault says how far loading has come.
                Some(deadline) => {
                    tokio::time::timeout_at(deadline.into(), changes.changed()).await.map_err(|_| loading)?
                }
            };
            if changed.is_err() {
                return Err(Fault::new(FaultKind::Unhealthy, "the server is shutting down"));
            }
        }
    }
}

impl Entry {
    pub(super) fn unloaded(spec: ModelSpec, initial: bool) -> Entry {
        Entry {
            spec,
            initial,
            state: State::Unloaded,
            leases: 0,
            used: Instant::now(),
            keep_alive: None,
            was_ready: false,
            last_error: None,
        }
    }

    /// Takes out a loaded model that was idle for too long.
    pub(super) fn take_idle(&mut self, limit: Option<Duration>) -> Option<ModelHandle> {
        let limit = idle_limit(self.keep_alive, limit)?;
        if self.leases > 0 || !matches!(self.state, State::Ready(_)) || self.used.elapsed() < limit {
            return None;
        }
        tracing::info!(
            model = self.spec.id,
            "unloaded: no request for {} s (--idle-timeout or keep_alive)",
            limit.as_secs_f64()
        );
        self.take()
    }
}

impl ModelSummary {
    /// How long the model stays loaded without requests; `None`: forever.
    pub(crate) fn idle_limit(&self, limit: Option<Duration>) -> Option<Duration> {
        idle_limit(self.keep_alive, limit)
    }
}

/// What a request asked for, or else the server's limit; `None`: forever.
fn idle_limit(keep_alive: Option<KeepAlive>, limit: Option<Duration>) -> Option<Duration> {
    match keep_alive {
        None => limit,
        Some(KeepAlive::For(limit)) => Some(limit),
        Some(KeepAlive::Forever) => None,
    }
}
