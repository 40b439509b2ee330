//! The shell around the core: it does what the core wants done, and tells it what came of it.

use crate::ask;
use crate::client::{self, Client};
use crate::config::{Config, reconcile};
use crate::core::{Action, Core, Event, Found, Leaving, Process, Record, Spec, Time, kind};
use crate::disk::{Keeper, State};
use crate::http::RouteCounts;
use crate::process::{self, Tell};
use futures_util::future::join_all;
use sconce_api::pool::{Failure, READY_PATH};
use sconce_api::worker::{Health, Launch};
use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at a process that is not our child.
const WATCH: Duration = Duration::from_millis(500);

/// A manager at work.
pub(crate) struct Manager {
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) keeper: Arc<Keeper>,
    /// What workers must be shown, and show.
    pub(crate) token: String,
    /// Where we listen.
    pub(crate) port: u16,
    core: Mutex<Core>,
    begun: Instant,
    changed: watch::Sender<u64>,
    /// Which workers have a job of this name.
    jobs: Mutex<HashMap<String, Vec<String>>>,
    /// What routing counts.
    pub(crate) counts: RouteCounts,
    next_port: AtomicU16,
}

impl Manager {
    /// With what is known of the past; nothing happens yet.
    pub(crate) fn new(config: Config, keeper: Arc<Keeper>, token: String, port: u16) -> Arc<Manager> {
        let core = Mutex::new(Core::new(config.timings, Vec::new()));
        let next_port = AtomicU16::new(0);
        let (client, changed, begun) = (client::client(), watch::Sender::new(0), Instant::now());
        let (jobs, counts) = (Mutex::default(), RouteCounts::default());
        Arc::new(Manager { config, client, keeper, token, port, core, begun, changed, jobs, counts, next_port })
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Vec<String>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker has a job.
    pub(crate) fn remember(&self, job: &str, id: &str) {
        self.jobs().entry(job.into()).or_default().push(id.into());
    }

    /// It has it no more.
    pub(crate) fn forget(&self, job: &str, id: &str) {
        let mut jobs = self.jobs();
        let Some(workers) = jobs.get_mut(job) else { return };
        if let Some(at) = workers.iter().position(|w| w == id) {
            workers.remove(at);
        }
        if workers.is_empty() {
            jobs.remove(job);
        }
    }

    /// Workers that have a job of this name.
    pub(crate) fn who_has(&self, job: &str) -> Vec<String> {
        self.jobs().get(job).cloned().unwrap_or_default()
    }

    /// Since we began.
    pub(crate) fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// The core, to look at.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // The core keeps no half-done work across a call, so what a panic leaves is sound.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told whenever something has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Lets the core decide, and does what it wants.
    pub(crate) fn decide<T>(self: &Arc<Self>, f: impl FnOnce(&mut Core, Time) -> (T, Vec<Action>)) -> T {
        let (value, actions) = f(&mut self.core(), self.now());
        if !actions.is_empty() {
            self.changed.send_modify(|n| *n += 1);
        }
        actions.into_iter().for_each(|action| self.act(action));
        value
    }

    fn tell(self: &Arc<Self>, id: &str, attempt: u64, event: Event) {
        self.decide(|core, now| ((), core.handle(id, attempt, event, now)));
        self.changed.send_modify(|n| *n += 1);
    }

    /// A worker that is to be; its name.
    pub(crate) fn start(self: &Arc<Self>, spec: Spec) -> String {
        let id = format!("{}-{}", slug(&spec.name), random(3));
        self.decide(|core, _| (id.clone(), core.start(id.clone(), spec)))
    }

    /// Goes on with what an earlier manager left, and starts what is missing.
    pub(crate) async fn begin(self: &Arc<Self>, left: Vec<Record>) {
        let plan = reconcile(&self.config.specs, left);
        let unwanted = plan.stop.into_iter().map(|record| Record { leaving: Leaving::Stop, ..record });
        let records: Vec<Record> = plan.keep.into_iter().chain(unwanted).collect();
        // All at once: one that is silent must not hold up the others.
        let found = join_all(records.iter().map(|record| self.find(record))).await;
        for (record, found) in records.into_iter().zip(found) {
            tracing::info!(worker = record.id, pid = record.process.map(|p| p.pid), "found {found:?}");
            let (id, process) = (record.id.clone(), record.process);
            self.decide(|core, now| ((), core.adopt(record, found, now)));
            if let Some(process) = process.filter(|_| found != Found::Gone) {
                // An adopted worker's attempt is its first in our eyes.
                self.watch(id, 1, process);
            }
        }
        for spec in plan.start {
            let id = self.start(spec.clone());
            tracing::info!(worker = id, model = spec.model, device = spec.device, "to be started");
        }
    }

    /// Whether a worker that an earlier manager started is still there, and still the same.
    async fn find(&self, record: &Record) -> Found {
        let Some(process) = record.process.filter(|p| process::runs(*p)) else { return Found::Gone };
        match self.health(record.port, Duration::from_secs(2)).await {
            Ok(health) if health.worker_id == record.id && health.resident => Found::Serving,
            Ok(health) if health.worker_id != record.id => {
                let (pid, other) = (process.pid, health.worker_id);
                tracing::warn!("process {pid} should be {} and says it is {other}", record.id);
                Found::Gone
            }
            Ok(_) | Err(_) => Found::Silent,
        }
    }

    async fn health(&self, port: u16, within: Duration) -> Result<Health, String> {
        let url = format!("http://127.0.0.1:{port}/health");
        let body = client::get(&self.client, &url, &self.token, within).await?;
        serde_json::from_slice(&body).map_err(|e| format!("its health is none: {e}"))
    }

    /// Lets time go by.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.decide(|core, now| ((), core.tick(now)));
        }
    }

    /// Stops all workers, and waits until they are gone.
    pub(crate) async fn stop_all(self: &Arc<Self>) {
        let ids = self.core().ids();
        for id in ids {
            // One that is not there any more is as good as stopped.
            self.decide(|core, now| ((), core.stop(&id, now).unwrap_or_default()));
        }
        let mut changes = self.changes();
        loop {
            let is_empty = self.core().is_empty();
            if is_empty || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn act(self: &Arc<Self>, action: Action) {
        let pool = self.clone();
        match action {
            Action::Plan { id, attempt, spec } => drop(tokio::spawn(async move {
                let outcome = pool.plan(&spec).await;
                if let Err(why) = &outcome {
                    tracing::warn!(worker = id, "{}", why.message);
                }
                pool.tell(&id, attempt, Event::Planned { outcome });
            })),
            Action::Spawn { id, attempt, spec, device } => drop(tokio::spawn(async move {
                pool.spawn(id, attempt, spec, device).await;
            })),
            Action::Probe { id, attempt, port } => drop(tokio::spawn(async move {
                let health = pool.health(port, pool.config.probe_timeout).await;
                let answer = health.and_then(|h| match h.worker_id == id {
                    true => Ok(()),
                    false => Err(format!("somebody else answers there: {}", h.worker_id)),
                });
                if let Err(why) = &answer {
                    tracing::warn!(worker = id, "missed a probe: {why}");
                }
                pool.tell(&id, attempt, Event::Probed(answer));
            })),
            Action::Terminate(process) => process::tell(process, Tell::Terminate),
            Action::Kill(process) => process::tell(process, Tell::Kill),
            Action::Save => {
                let records = self.core().records();
                self.keeper.save(State::new(self.token.clone(), records));
            }
        }
    }

    async fn plan(&self, spec: &Spec) -> Result<(crate::core::Planned, Vec<crate::core::Device>), Box<Failure>> {
        let devices = ask::devices(&self.config).await?;
        let device = self.core().place(&spec.device, &devices)?;
        let planned = ask::plan(&self.config, spec, &device).await?;
        Ok((planned, devices))
    }

    async fn spawn(self: Arc<Self>, id: String, attempt: u64, spec: Spec, device: String) {
        let port = match self.free_port() {
            Ok(port) => port,
            Err(why) => return self.tell(&id, attempt, Event::NotSpawned(why)),
        };
        let launch = Launch {
            worker_id: id.clone(),
            model: spec.model.clone(),
            hostname: "127.0.0.1".into(),
            port,
            callback_url: format!("http://127.0.0.1:{}{READY_PATH}", self.port),
            device: Some(device.clone()),
            names: vec![spec.name.clone()],
            tuning: spec.tuning.clone(),
            ..Launch::default()
        };
        let mut arguments = vec!["worker".to_string()];
        arguments.extend(launch.arguments());
        let (binary, log) = (self.config.binary(kind(&device)), self.log(&id));
        match process::spawn(binary, &arguments, (Launch::KEY, &self.token), &log) {
            Err(e) => {
                let why = format!("{}: {e}", binary.display());
                tracing::error!(worker = id, "{why}");
                self.tell(&id, attempt, Event::NotSpawned(why));
            }
            Ok((mut child, process)) => {
                tracing::info!(worker = id, pid = process.pid, port, device, model = spec.model, "started");
                self.tell(&id, attempt, Event::Spawned { process, port });
                let (code, how) = match child.wait().await {
                    Ok(status) => (status.code(), process::how(status, &log)),
                    Err(e) => (None, format!("nobody knows how: {e}")),
                };
                tracing::info!(worker = id, pid = process.pid, "ended: {how}");
                self.tell(&id, attempt, Event::Exited { code, how });
            }
        }
    }

    /// Tells the end of a process that is not our child.
    fn watch(self: &Arc<Self>, id: String, attempt: u64, process: Process) {
        let pool = self.clone();
        tokio::spawn(async move {
            while process::runs(process) {
                tokio::time::sleep(WATCH).await;
            }
            tracing::info!(worker = id, pid = process.pid, "ended");
            let how = "nobody knows how: an earlier manager started it".to_string();
            pool.tell(&id, attempt, Event::Exited { code: None, how });
        });
    }

    /// Where what a worker says is written.
    fn log(&self, id: &str) -> PathBuf {
        self.config.state.join("logs").join(format!("{id}.log"))
    }

    /// A port that nobody listens at now. Somebody may before our worker does; then it says so, and gets another.
    fn free_port(&self) -> Result<u16, String> {
        let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let Some(range) = &self.config.ports else {
            let bound = is_free(0).and_then(|l| l.local_addr());
            return bound.map(|a| a.port()).map_err(|e| format!("there is no port for it: {e}"));
        };
        // One after the other, so that a port that was taken is not the next to be tried.
        let length = range.end() - range.start() + 1;
        let from = self.next_port.load(Ordering::Relaxed);
        for step in 0..length {
            let offset = (from % length + step) % length;
            let port = range.start() + offset;
            if is_free(port).is_ok() {
                self.next_port.store(offset + 1, Ordering::Relaxed);
                return Ok(port);
            }
        }
        let (first, last) = (range.start(), range.end());
        Err(format!("all ports from {first} to {last} are taken; give more with worker_ports"))
    }
}

/// A name as part of another: letters, digits and dashes.
fn slug(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let plain: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
    let trimmed = plain.trim_matches('-');
    if trimmed.is_empty() { "worker".into() } else { trimmed.into() }
}

/// Hexadecimal digits that nobody can guess.
pub(crate) fn random(bytes: usize) -> String {
    let mut all = vec![0; bytes];
    // It fails where a system has no randomness at all; nothing of ours would be safe there.
    getrandom::fill(&mut all).expect("the system has random numbers");
    all.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_files_and_processes() {
        assert_eq!(slug("HuggingFaceTB/SmolLM2-135M"), "smollm2-135m");
        assert_eq!(slug("../../etc/pass wd"), "pass-wd");
        assert_eq!(slug("/"), "worker");
        assert_eq!(slug(&"é".repeat(99)), "worker");
        assert_ne!(random(16), random(16));
        assert_eq!(random(16).len(), 32);
    }
}
