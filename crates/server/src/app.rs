//! What all handlers share.

use crate::call::Call;
use crate::config::Config;
use crate::dialect::worker::Member;
use crate::error::{Fault, FaultKind};
use crate::house::House;
use crate::metrics::Metrics;
use crate::served::Want;
use crate::stop::Stop;
use crate::trail::Trail;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// So many bodies of the largest size are read at once; smaller ones, as many as they are smaller.
const BODIES: usize = 64;
/// The most KiB of bodies at once, as a semaphore counts them.
const MOST_BODIES: usize = u32::MAX as usize / 2;

fn permits(config: &Config) -> usize {
    config.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)
}

/// A server's state: `State<Arc<App>>` of every handler.
pub struct App {
    /// What was set.
    pub config: Config,
    /// The models.
    pub house: Arc<House>,
    /// What is counted.
    pub metrics: Metrics,
    /// Ends it.
    pub stop: Stop,
    /// When it began.
    pub begun: Instant,
    /// What a worker has besides.
    pub(crate) member: Option<Arc<Member>>,
    gate: Arc<Semaphore>,
    /// Bytes of bodies that are being read, in KiB.
    pub(crate) bodies: Semaphore,
}

impl App {
    pub(crate) fn new(config: Config, house: Arc<House>, stop: Stop) -> Arc<App> {
        let gate = Arc::new(Semaphore::new(permits(&config)));
        let bodies = Semaphore::new((config.payload_limit / 1024).saturating_mul(BODIES).clamp(1, MOST_BODIES));
        let metrics = Metrics::new();
        let member = config.worker.clone().map(|w| Arc::new(Member::new(w, metrics.registry())));
        Arc::new(App { config, house, metrics, stop, begun: Instant::now(), member, gate, bodies })
    }

    /// Begins work for a request: a model that can do what is wanted, held until the call is over, and one of the permits.
    /// `method` is the name under which it is counted.
    pub fn call(
        self: &Arc<Self>,
        method: &'static str,
        trail: &Arc<Trail>,
        model: Option<&str>,
        want: Want,
    ) -> Result<Call, Fault> {
        trail.count();
        self.begin(method, trail, model, want).inspect_err(|fault| self.metrics.refused(method, fault))
    }

    fn begin(
        self: &Arc<Self>,
        method: &'static str,
        trail: &Arc<Trail>,
        model: Option<&str>,
        want: Want,
    ) -> Result<Call, Fault> {
        if let Some(model) = model {
            trail.asks(model);
        }
        if self.stop.is_draining() {
            return Err(Fault::new(
                FaultKind::Unhealthy,
                "this server is finishing what it has, and takes nothing new",
            ));
        }
        let lease = self.house.lease(model, want)?;
        trail.asks(&lease.served().id);
        let permit = self.gate.clone().try_acquire_owned().map_err(|_| {
            let most = self.config.max_concurrent;
            let what = format!("{most} requests are being worked on, and that is the most; come again in a moment");
            Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
        })?;
        Ok(Call::new(self, method, trail.clone(), lease, permit))
    }

    /// All permits that there are.
    pub(crate) fn permits(&self) -> usize {
        permits(&self.config)
    }

    /// Permits that nobody holds.
    pub fn free_permits(&self) -> usize {
        self.gate.available_permits()
    }

    /// Refuses nothing, and more inputs than a request may have.
    pub fn check_batch(&self, inputs: usize, param: &str) -> Result<(), Fault> {
        let most = self.config.max_client_batch;
        match inputs {
            0 => Err(Fault::new(FaultKind::Empty, format!("`{param}` is empty; give at least one")).at(param)),
            n if n > most => {
                let what = format!("`{param}` has {n} items; one request may have {most} (--max-client-batch-size)");
                Err(Fault::new(FaultKind::TooMany, what).at(param))
            }
            _ => Ok(()),
        }
    }
}
