//! State shared by all handlers.

use crate::call::Call;
use crate::config::{Config, Listen};
use crate::dialect::worker::Member;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::metrics::Metrics;
use crate::model_manager::ModelManager;
use crate::served_model::RequestKind;
use crate::stop::Stop;
use sconce_api::hosts::AllowedHosts;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Bodies of the largest size that may be read at once; of smaller bodies, correspondingly more.
const MAX_LARGE_BODIES: usize = 64;
/// Most KiB of bodies at once that the semaphore can count.
const MAX_BODY_KIB: usize = u32::MAX as usize / 2;

fn permits(config: &Config) -> usize {
    config.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)
}

/// State of a server: `State<Arc<App>>` of every handler.
pub struct App {
    /// The configuration.
    pub config: Config,
    /// The model manager.
    pub models: Arc<ModelManager>,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Signals shutdown.
    pub stop: Stop,
    /// When the server started.
    pub started_at: Instant,
    /// The host names that requests may have.
    pub(crate) allowed_hosts: AllowedHosts,
    /// State of a worker of a pool.
    pub(crate) member: Option<Arc<Member>>,
    gate: Arc<Semaphore>,
    /// KiB of bodies that may still be read.
    pub(crate) bodies: Semaphore,
}

impl App {
    pub(crate) fn new(config: Config, models: Arc<ModelManager>, stop: Stop) -> Arc<App> {
        let gate = Arc::new(Semaphore::new(permits(&config)));
        let bodies =
            Semaphore::new((config.payload_limit / 1024).saturating_mul(MAX_LARGE_BODIES).clamp(1, MAX_BODY_KIB));
        let metrics = Metrics::new();
        let member = config.worker.clone().map(|w| Arc::new(Member::new(w, metrics.registry())));
        let address = match &config.listen {
            Listen::Tcp { host, .. } => Some(host.as_str()),
            Listen::Unix(_) => None,
        };
        let allowed_hosts = AllowedHosts::new(address, !config.api_keys.is_empty(), &config.allowed_hosts);
        let started_at = Instant::now();
        Arc::new(App { config, models, metrics, stop, started_at, allowed_hosts, member, gate, bodies })
    }

    /// Starts a call: leases a model that supports `kind` and takes a concurrency permit, both
    /// until the call ends. `method` is its label in the metrics.
    pub fn call(
        self: &Arc<Self>,
        method: &'static str,
        context: &Arc<HttpContext>,
        model: Option<&str>,
        kind: RequestKind,
    ) -> Result<Call, Fault> {
        context.mark_counted();
        self.begin(method, context, model, kind).inspect_err(|fault| self.metrics.refused(method, fault))
    }

    fn begin(
        self: &Arc<Self>,
        method: &'static str,
        context: &Arc<HttpContext>,
        model: Option<&str>,
        kind: RequestKind,
    ) -> Result<Call, Fault> {
        if let Some(model) = model {
            context.set_model(model);
        }
        if self.stop.is_draining() {
            return Err(Fault::new(FaultKind::Unhealthy, "the server is shutting down and accepts no new requests"));
        }
        let lease = self.models.lease(model, kind)?;
        context.set_model(&lease.served().id);
        let permit = self.gate.clone().try_acquire_owned().map_err(|_| {
            let limit = self.config.max_concurrent;
            let what = format!("the server is at its limit of {limit} concurrent requests (--max-concurrent-requests); retry in a moment");
            Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
        })?;
        Ok(Call::new(self, method, context.clone(), lease, permit))
    }

    /// Total concurrency permits.
    pub(crate) fn permits(&self) -> usize {
        permits(&self.config)
    }

    /// Free concurrency permits.
    pub fn free_permits(&self) -> usize {
        self.gate.available_permits()
    }

    /// Refuses an empty batch, and one that exceeds --max-client-batch-size.
    pub fn check_batch(&self, inputs: usize, param: &str) -> Result<(), Fault> {
        let limit = self.config.max_client_batch;
        match inputs {
            0 => Err(Fault::new(FaultKind::Empty, format!("`{param}` is empty; send at least one item")).at(param)),
            n if n > limit => {
                let what =
                    format!("`{param}` has {n} items; the limit is {limit} per request (--max-client-batch-size)");
                Err(Fault::new(FaultKind::TooMany, what).at(param))
            }
            _ => Ok(()),
        }
    }
}
