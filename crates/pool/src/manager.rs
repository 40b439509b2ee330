//! The shell around the core: it does what the core wants done, and tells it what came of it.

use crate::ask;
use crate::client::get;
use crate::config::{Config, reconcile};
use crate::core::{Action, Answer, Core, Device, Event, Found, Leaving, Planned, Record, Spec, Time};
use crate::disk::{Keeper, State};
use crate::http::RouteCounts;
use crate::logs;
use crate::process::{self, Tell};
use futures_util::future::join_all;
use sconce_api::client::{Client, Lost, client};
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

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at the devices and the logs.
const LOOK: Duration = Duration::from_secs(60);

/// A manager at work.
pub(crate) struct Manager {
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) keeper: Arc<Keeper>,
    /// What workers must be shown, and show.
    pub(crate) token: String,
    /// Where workers say that they are ready.
    pub(crate) callback: String,
    core: Mutex<Core>,
    begun: Instant,
    changed: watch::Sender<u64>,
    /// Which workers have a job of this name.
    jobs: Mutex<HashMap<String, Vec<String>>>,
    /// What routing counts.
    pub(crate) counts: RouteCounts,
    pub(crate) next_port: AtomicU32,
    /// Processes that are our children and have not been waited for, by their numbers, and how each is told to end.
    children: Mutex<HashMap<u32, mpsc::UnboundedSender<Tell>>>,
}

impl Manager {
    /// With what is known of the past; nothing happens yet.
    pub(crate) fn new(config: Config, keeper: Arc<Keeper>, token: String, address: SocketAddr) -> Arc<Manager> {
        Arc::new(Manager {
            core: Mutex::new(Core::new(config.timings, Vec::new())),
            config,
            client: client(),
            keeper,
            token,
            callback: format!("http://{}{READY_PATH}", reachable(address)),
            begun: Instant::now(),
            changed: watch::Sender::new(0),
            jobs: Mutex::default(),
            counts: RouteCounts::default(),
            next_port: AtomicU32::new(0),
            children: Mutex::default(),
        })
    }

    pub(crate) fn children(&self) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<Tell>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (value, actions) = {
            let mut core = self.core();
            let (value, mut actions) = f(&mut core, self.now());
            let before = actions.len();
            actions.retain(|action| *action != Action::Save);
            if actions.len() < before {
                // Handed over before anybody else can change it: an older state must not come after a newer one.
                self.keeper.save(State::new(self.token.clone(), core.records()));
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

    pub(crate) fn tell(self: &Arc<Self>, id: &str, attempt: u64, event: Event) {
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
        // All at once: one that is silent must not hold up the others.
        let found = join_all(left.iter().map(|record| self.find(record))).await;
        let found: HashMap<String, Found> = left.iter().map(|record| record.id.clone()).zip(found).collect();
        let is_gone = |record: &Record| found.get(&record.id) == Some(&Found::Gone);
        let left = left.into_iter().map(|record| match record.leaving {
            // What took no more requests and is gone by now is no more; what is declared is to be there again.
            Leaving::Drain if is_gone(&record) => Record { leaving: Leaving::Stop, ..record },
            _ => record,
        });
        let plan = reconcile(&self.config.specs, left.collect());
        let unwanted = plan.stop.into_iter().map(|record| Record { leaving: Leaving::Stop, ..record });
        for record in plan.keep.into_iter().chain(unwanted) {
            let found = found.get(&record.id).copied().unwrap_or(Found::Gone);
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
                // The process is ours, by its number and its birth, and somebody else has its port: it is no use to anybody, and
                // holds memory. Nothing more is heard of it than its end.
                let (id, pid, other) = (&record.id, process.pid, health.worker_id);
                tracing::warn!(worker = id, pid, "ended: {other} answers at its port {}", record.port);
                process::tell(process, Tell::Kill);
                Found::Silent
            }
            Ok(_) | Err(_) => Found::Silent,
        }
    }

    async fn health(&self, port: u16, within: Duration) -> Result<Health, Lost> {
        let url = format!("http://127.0.0.1:{port}/health");
        let body = get(&self.client, &url, &self.token, within).await?;
        serde_json::from_slice(&body).map_err(|e| Lost::theirs(format!("its health is none: {e}")))
    }

    async fn probe(&self, id: &str, port: u16) -> Answer {
        let missed = match self.health(port, self.config.timings.answer).await {
            Ok(health) if health.worker_id == id => return Answer::Well,
            Ok(health) => format!("somebody else answers there: {}", health.worker_id),
            Err(lost) if lost.ours => {
                tracing::warn!(worker = id, "could not be probed: {}", lost.why);
                return Answer::Unasked;
            }
            Err(lost) => lost.why,
        };
        tracing::warn!(worker = id, "missed a probe: {missed}");
        Answer::Missed(missed)
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

    /// Looks at the devices and the logs, now and from time to time.
    pub(crate) async fn look(self: Arc<Self>) {
        loop {
            match ask::devices(&self.config).await {
                Ok(devices) => self.decide(|core, _| (core.saw(devices), Vec::new())),
                Err(why) => tracing::warn!("{}", why.message),
            }
            let (dir, ids) = (self.logs(), BTreeSet::from_iter(self.core().ids()));
            let tidied = tokio::task::spawn_blocking(move || logs::tidy(&dir, &ids, SystemTime::now())).await;
            if let Err(e) = tidied {
                tracing::warn!("the logs were not looked at: {e}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Stops all workers, and waits until they are gone.
    pub(crate) async fn stop_all(self: &Arc<Self>) {
        let mut changes = self.changes();
        let mut told: BTreeSet<String> = BTreeSet::new();
        loop {
            // Again and again: somebody may still be having one started.
            let ids = self.core().ids();
            for id in ids.into_iter().filter(|id| told.insert(id.clone())) {
                // One that is not there any more is as good as stopped.
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
                let lost =
                    Box::new(Failure::new(Code::WorkerStartFailed, "planning it failed by a bug of ours; see the log"));
                self.task((id.clone(), attempt), Event::Planned { outcome: Err(lost) }, async move {
                    let outcome = pool.plan(&spec).await;
                    if let Err(why) = &outcome {
                        tracing::warn!(worker = id, "{}", why.message);
                    }
                    pool.tell(&id, attempt, Event::Planned { outcome });
                });
            }
            Action::Spawn { id, attempt, spec, device } => {
                let how = "nobody knows how, by a bug of ours; see the log".to_string();
                let lost = Event::Exited { code: None, how };
                self.task((id.clone(), attempt), lost, pool.spawn(id, attempt, spec, device));
            }
            Action::Probe { id, attempt, port } => {
                self.task((id.clone(), attempt), Event::Probed(Answer::Unasked), async move {
                    let answer = pool.probe(&id, port).await;
                    pool.tell(&id, attempt, Event::Probed(answer));
                });
            }
            Action::Terminate(process) => self.signal(process, Tell::Terminate),
            Action::Kill(process) => self.signal(process, Tell::Kill),
            // Done when it was decided.
            Action::Save => {}
        }
    }

    /// Does something that a worker waits for. If it panics the worker hears `lost` instead, rather than wait for ever.
    fn task(self: &Arc<Self>, of: (String, u64), lost: Event, work: impl Future<Output = ()> + Send + 'static) {
        let (pool, (id, attempt)) = (self.clone(), of);
        tokio::spawn(async move {
            if tokio::spawn(work).await.is_err_and(|e| e.is_panic()) {
                tracing::error!(worker = id, "a bug: what was done for it panicked");
                pool.tell(&id, attempt, lost);
            }
        });
    }

    async fn plan(&self, spec: &Spec) -> Result<(Planned, Vec<Device>), Box<Failure>> {
        let devices = ask::devices(&self.config).await?;
        let device = self.core().place(&spec.device, &devices)?;
        let planned = ask::plan(&self.config, spec, &device).await?;
        // A plan may take long, a model may have to be fetched first: what was free before it may not be.
        Ok((planned, ask::devices(&self.config).await?))
    }

    /// Where what workers say is written.
    pub(crate) fn logs(&self) -> PathBuf {
        self.config.state.join("logs")
    }
}

/// Where workers of this host reach us.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
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
    use crate::config::PoolFile;
    use crate::core::Origin;

    fn manager(address: &str) -> (tempfile::TempDir, Arc<Manager>) {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, _) = Keeper::open(dir.path()).unwrap();
        let config = Config::new(PoolFile::default(), "sconce".into(), |_| dir.path().into()).unwrap();
        let manager = Manager::new(config, keeper, "token".into(), address.parse().unwrap());
        (dir, manager)
    }

    fn spec() -> Spec {
        let tuning = sconce_api::worker::Tuning::default();
        Spec { name: "m".into(), model: "m".into(), device: "cpu".into(), tuning, origin: Origin::Declared }
    }

    #[test]
    fn workers_call_back_where_we_listen() {
        for (bound, callback) in [
            ("127.0.0.1:9200", "http://127.0.0.1:9200"),
            ("0.0.0.0:9200", "http://127.0.0.1:9200"),
            ("192.0.2.7:9200", "http://192.0.2.7:9200"),
            ("[::]:9200", "http://[::1]:9200"),
            ("[::1]:9200", "http://[::1]:9200"),
        ] {
            assert_eq!(manager(bound).1.callback, format!("{callback}{READY_PATH}"), "{bound}");
        }
    }

    #[test]
    fn what_is_kept_is_never_older_than_what_was_decided_last() {
        let (_dir, manager) = manager("127.0.0.1:1");
        // Whoever decides has to wait here to hand over what is to be kept …
        let next = manager.keeper.next();
        std::thread::scope(|threads| {
            threads.spawn(|| manager.decide(|core, _| ((), less_plan(core.start("m-1".into(), spec())))));
            let until = Instant::now() + Duration::from_secs(10);
            while manager.core.try_lock().is_ok() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(50));
            // … and nobody else decides anything before that is done.
            assert!(manager.core.try_lock().is_err());
            drop(next);
        });
        assert_eq!(manager.keeper.next().take().unwrap().workers.len(), 1);
    }

    #[tokio::test]
    async fn a_panic_in_what_a_worker_waits_for_is_told_to_it() {
        let (_dir, manager) = manager("127.0.0.1:1");
        manager.decide(|core, _| ((), less_plan(core.start("m-1".into(), spec()))));
        let why = Box::new(Failure::new(Code::WorkerStartFailed, "a bug"));
        let mut changes = manager.changes();
        manager.task(("m-1".into(), 1), Event::Planned { outcome: Err(why) }, async { panic!("on purpose") });
        changes.changed().await.unwrap();
        let state = manager.core().worker("m-1", manager.now()).unwrap();
        assert_eq!((state.state.name(), state.why.as_deref()), ("failed", Some("a bug")));
    }

    fn less_plan(actions: Vec<Action>) -> Vec<Action> {
        actions.into_iter().filter(|a| *a == Action::Save).collect()
    }

    #[tokio::test]
    async fn what_is_started_while_all_are_stopped_is_stopped_too() {
        let (_dir, manager) = manager("127.0.0.1:1");
        let start = |id: &str| manager.decide(|core, _| ((), less_plan(core.start(id.into(), spec()))));
        start("m-1");
        let device =
            Device { device: "cpu".into(), description: String::new(), free_bytes: 9, total_bytes: 9, best: true };
        let outcome = Ok((Planned { bytes: 1, task: "embed".into() }, vec![device]));
        // Its process is on the way, so that it is waited for.
        manager.decide(|core, now| ((), less_plan(core.handle("m-1", 1, Event::Planned { outcome }, now))));
        let stopping = tokio::spawn({
            let manager = manager.clone();
            async move { manager.stop_all().await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!stopping.is_finished());
        start("m-2");
        manager.tell("m-1", 1, Event::Exited { code: Some(0), how: "well".into() });
        tokio::time::timeout(Duration::from_secs(10), stopping).await.expect("both to be gone").unwrap();
        assert!(manager.core().is_empty());
    }

    #[test]
    fn a_range_of_all_ports_is_no_trouble() {
        let (_dir, manager) = manager("127.0.0.1:1");
        let mut manager = Arc::into_inner(manager).unwrap();
        manager.config.ports = Some(1024..=65535);
        manager.next_port = AtomicU32::new(64_000);
        let port = manager.free_port().unwrap();
        assert!(port >= 1024);
    }

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
