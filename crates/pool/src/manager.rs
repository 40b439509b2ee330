//! Carries out the actions of the core and reports their results to it as events.

use crate::client::get;
use crate::config::Config;
use crate::core::{Action, Core, Device, Endpoint, Event, HostProbe, Planned, ProbeResult, Spec, Time};
use crate::disk::{State, StateStore};
use crate::hosts::{Host, Hosts, hosts};
use crate::http::{RouteCounts, WaitingJobs};
use crate::ids::{random_hex, slug};
use crate::inspect;
use crate::logs;
use crate::process::EndSignal;
use sconce_api::client::{Client, RequestError, client};
use sconce_api::pool::{Code, Failure, READY_PATH};
use sconce_api::worker::Health;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, watch};

/// Between two ticks of the core.
const TICK: Duration = Duration::from_millis(100);
/// Between two inspections of the devices and the log files.
const INSPECT_INTERVAL: Duration = Duration::from_secs(60);

/// A running manager.
pub(crate) struct Manager {
    pub(crate) config: Config,
    /// Identifies this manager to others that pass requests on.
    pub(crate) id: String,
    pub(crate) client: Client,
    hosts: Hosts,
    pub(crate) store: Arc<StateStore>,
    /// Shared with the workers: the manager sends it with every request, and they send it when they
    /// call back.
    pub(crate) token: String,
    /// URL to which workers report that they are ready.
    pub(crate) callback: String,
    core: Mutex<Core>,
    started_at: Instant,
    changed: watch::Sender<u64>,
    /// Workers that run a job, by job id.
    jobs: Mutex<HashMap<String, Vec<String>>>,
    pub(crate) waiting_jobs: WaitingJobs,
    /// Counters of the router.
    pub(crate) counts: RouteCounts,
    pub(crate) next_port: AtomicU32,
    /// Running child processes by pid, each with the channel that asks its task to signal it.
    children: Mutex<HashMap<u32, mpsc::UnboundedSender<EndSignal>>>,
}

impl Manager {
    /// A manager without workers; [`Manager::restore`] starts them.
    pub(crate) fn new(config: Config, store: Arc<StateStore>, token: String, address: SocketAddr) -> Arc<Manager> {
        let id = random_hex(8);
        Arc::new(Manager {
            core: Mutex::new(Core::new(config.timings, Vec::new())),
            hosts: hosts(&config.hosts, &id),
            config,
            id,
            client: client(),
            store,
            token,
            callback: format!("http://{}{READY_PATH}", local_address(address)),
            started_at: Instant::now(),
            changed: watch::Sender::new(0),
            jobs: Mutex::default(),
            waiting_jobs: WaitingJobs::default(),
            counts: RouteCounts::default(),
            next_port: AtomicU32::new(0),
            children: Mutex::default(),
        })
    }

    pub(crate) fn children(&self) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<EndSignal>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Vec<String>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a worker runs a job.
    pub(crate) fn add_job(&self, job: &str, id: &str) {
        self.jobs().entry(job.into()).or_default().push(id.into());
    }

    /// Removes a job from a worker.
    pub(crate) fn remove_job(&self, job: &str, id: &str) {
        let mut jobs = self.jobs();
        let Some(workers) = jobs.get_mut(job) else { return };
        if let Some(at) = workers.iter().position(|w| w == id) {
            workers.remove(at);
        }
        if workers.is_empty() {
            jobs.remove(job);
        }
    }

    /// Workers that run the job `job`.
    pub(crate) fn workers_of_job(&self, job: &str) -> Vec<String> {
        self.jobs().get(job).cloned().unwrap_or_default()
    }

    /// Time since the manager started.
    pub(crate) fn now(&self) -> Time {
        self.started_at.elapsed()
    }

    /// Locks the core.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // Every call leaves the core consistent, so a lock poisoned by a panic is safe to use.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified after every change of state.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Runs `f` on the core and carries out the actions it returns.
    pub(crate) fn decide<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core, Time) -> (T, Vec<Action>)) -> T {
        let (value, actions) = {
            let mut core = self.core();
            let (value, mut actions) = f(&mut core, self.now());
            let before = actions.len();
            actions.retain(|action| *action != Action::Save);
            if actions.len() < before {
                // Queued while the core is locked, so that an older state never follows a newer
                // one.
                self.store.save(State::new(self.token.clone(), core.records(), core.drained()));
                self.changed.send_modify(|n| *n += 1);
            }
            (value, actions)
        };
        if !actions.is_empty() {
            self.changed.send_modify(|n| *n += 1);
        }
        actions.into_iter().for_each(|action| self.act(action));
        value
    }

    pub(crate) fn handle_event(self: &Arc<Self>, id: &str, attempt: u64, event: Event) {
        self.decide(|core, now| ((), core.handle(id, attempt, event, now)));
        self.changed.send_modify(|n| *n += 1);
    }

    /// The other host of an endpoint.
    pub(crate) fn host(&self, endpoint: &Endpoint) -> Option<&Arc<Host>> {
        match endpoint {
            Endpoint::Host(name) => self.hosts.get(name),
            Endpoint::Port(_) => None,
        }
    }

    fn host_probed(self: &Arc<Self>, name: &str, result: HostProbe) {
        let why = match &result {
            HostProbe::Missed(why) | HostProbe::Refused(why) => why.clone(),
            HostProbe::Healthy | HostProbe::Serves { .. } | HostProbe::NotSent => String::new(),
        };
        let (before, after) = self.decide(|core, now| {
            let before = core.is_reachable(name);
            let actions = core.host_probed(name, result, now);
            ((before, core.is_reachable(name)), actions)
        });
        match (before, after) {
            (None | Some(false), Some(true)) => tracing::info!(host = name, "gets requests"),
            (None | Some(true), Some(false)) => tracing::warn!(host = name, "gets no requests: {why}"),
            _ => {}
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Starts a worker and returns its id.
    pub(crate) fn start(self: &Arc<Self>, spec: Spec) -> String {
        let id = format!("{}-{}", slug(&spec.name), random_hex(3));
        self.decide(|core, _| (id.clone(), core.start(id.clone(), spec)))
    }

    pub(crate) async fn health(&self, port: u16, within: Duration) -> Result<Health, RequestError> {
        let url = format!("http://127.0.0.1:{port}/health");
        let body = get(&self.client, &url, &self.token, within).await?;
        serde_json::from_slice(&body).map_err(|e| RequestError::theirs(format!("invalid response of /health: {e}")))
    }

    async fn probe(&self, id: &str, port: u16) -> ProbeResult {
        let missed = match self.health(port, self.config.timings.answer).await {
            Ok(health) if health.worker_id == id => return ProbeResult::Healthy,
            Ok(health) => format!("worker {} answers at its port", health.worker_id),
            Err(lost) if lost.ours => {
                tracing::warn!(worker = id, "cannot send a probe: {}", lost.why);
                return ProbeResult::NotSent;
            }
            Err(lost) => lost.why,
        };
        tracing::warn!(worker = id, "missed a probe: {missed}");
        ProbeResult::Missed(missed)
    }

    /// Ticks the core until aborted.
    pub(crate) async fn tick_loop(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.decide(|core, now| ((), core.tick(now)));
        }
    }

    /// Inspects the devices and trims the logs, now and every [`INSPECT_INTERVAL`].
    pub(crate) async fn inspect_loop(self: Arc<Self>) {
        loop {
            match inspect::devices(&self.config).await {
                Ok(devices) => self.decide(|core, _| (core.set_devices(devices), Vec::new())),
                Err(why) => tracing::warn!("{}", why.message),
            }
            let (dir, ids) = (self.logs(), BTreeSet::from_iter(self.core().ids()));
            let cleaned = tokio::task::spawn_blocking(move || logs::clean_up(&dir, &ids, SystemTime::now())).await;
            if let Err(e) = cleaned {
                tracing::warn!("cannot clean up the logs: {e}");
            }
            tokio::time::sleep(INSPECT_INTERVAL).await;
        }
    }

    /// Stops all workers and waits until they are gone.
    pub(crate) async fn stop_all(self: &Arc<Self>) {
        let mut changes = self.changes();
        let mut stopped: BTreeSet<String> = BTreeSet::new();
        loop {
            // Repeated, because a request may still be starting a worker.
            let ids = self.core().ids();
            for id in ids.into_iter().filter(|id| stopped.insert(id.clone())) {
                // A worker that has ended in the meantime needs no stop.
                self.decide(|core, now| ((), core.stop(&id, now).unwrap_or_default()));
            }
            let is_empty = self.core().is_empty();
            if is_empty || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn act(self: &Arc<Self>, action: Action) {
        let pool = self.clone();
        match action {
            Action::Plan { id, attempt, spec } => {
                let lost = Box::new(Failure::new(
                    Code::WorkerStartFailed,
                    "planning failed because of a bug; see the manager's log",
                ));
                self.task((id.clone(), attempt), Event::Planned { outcome: Err(lost) }, async move {
                    let outcome = pool.plan(&spec).await;
                    if let Err(why) = &outcome {
                        tracing::warn!(worker = id, "{}", why.message);
                    }
                    pool.handle_event(&id, attempt, Event::Planned { outcome });
                });
            }
            Action::Spawn { id, attempt, spec, device } => {
                let how = "exit status unknown because of a bug; see the manager's log".to_string();
                let lost = Event::Exited { code: None, how };
                self.task((id.clone(), attempt), lost, pool.spawn(id, attempt, spec, device));
            }
            Action::Probe { id, attempt, port } => {
                self.task((id.clone(), attempt), Event::Probed(ProbeResult::NotSent), async move {
                    let answer = pool.probe(&id, port).await;
                    pool.handle_event(&id, attempt, Event::Probed(answer));
                });
            }
            Action::ProbeHost { host: name, models } => {
                let Some(host) = self.hosts.get(&name).cloned() else { return };
                let within = self.config.timings.hosts.answer;
                tokio::spawn(async move {
                    // If the probe panics, the next one is not to wait forever.
                    let result = tokio::spawn(async move { host.probe(models, within).await }).await;
                    pool.host_probed(&name, result.unwrap_or(HostProbe::NotSent));
                });
            }
            Action::LoseHost(name) => {
                if let Some(host) = self.hosts.get(&name) {
                    host.mark_lost();
                }
            }
            Action::EndResponses(name) => {
                if let Some(host) = self.hosts.get(&name) {
                    host.end_responses();
                }
            }
            Action::Terminate(process) => self.signal(process, EndSignal::Terminate),
            Action::Kill(process) => self.signal(process, EndSignal::Kill),
            // `decide` has queued it already.
            Action::Save => {}
        }
    }

    /// Runs a task on whose event a worker waits. If the task panics, the worker gets `on_panic`
    /// instead of waiting forever.
    fn task(self: &Arc<Self>, of: (String, u64), on_panic: Event, work: impl Future<Output = ()> + Send + 'static) {
        let (pool, (id, attempt)) = (self.clone(), of);
        tokio::spawn(async move {
            if tokio::spawn(work).await.is_err_and(|e| e.is_panic()) {
                tracing::error!(worker = id, "a bug: the task for this worker panicked");
                pool.handle_event(&id, attempt, on_panic);
            }
        });
    }

    async fn plan(&self, spec: &Spec) -> Result<(Planned, Vec<Device>), Box<Failure>> {
        let devices = inspect::devices(&self.config).await?;
        let device = self.core().place(&spec.device, &devices)?;
        let planned = inspect::plan(&self.config, spec, &device).await?;
        // Planning may take long, for example to download the model, so free memory is read again.
        Ok((planned, inspect::devices(&self.config).await?))
    }

    /// Directory of the workers' log files.
    pub(crate) fn logs(&self) -> PathBuf {
        self.config.state.join("logs")
    }
}

/// Address at which workers of this host reach the manager.
fn local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests;
