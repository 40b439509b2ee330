//! Loading, at the start and at run time.

use super::{Entry, Gauge, Guest, House, ModelSpec, State, Trouble};
use crate::error::{Fault, FaultKind};
use crate::served::Served;
use sconce_engine::Task;
use sconce_engine::hub::{Progress, Reference, resolve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

/// How long a model may take to go that is evicted.
const LEAVING: Duration = Duration::from_secs(10);

impl House {
    /// Begins to load a model that the server begins with.
    pub(crate) fn furnish(self: &Arc<Self>, spec: ModelSpec) -> Result<(), Fault> {
        self.add(spec, true).map(drop)
    }

    /// Adds a model and begins to load it. Another of its name is an error, unless that one could not be loaded.
    pub fn load(self: &Arc<Self>, spec: ModelSpec) -> Result<Arc<Gauge>, Fault> {
        self.add(spec, false)
    }

    fn add(self: &Arc<Self>, spec: ModelSpec, first: bool) -> Result<Arc<Gauge>, Fault> {
        let mut entries = self.entries();
        if let Some(other) = entries.iter().find(|e| e.spec.id != spec.id && e.spec.is_called(&spec.id)) {
            let what = format!("`{}` is another name of the model `{}`", spec.id, other.spec.id);
            return Err(Fault::new(FaultKind::Conflict, what).at("name"));
        }
        match entries.iter_mut().find(|e| e.spec.id == spec.id) {
            None => {
                entries.push(Entry {
                    spec,
                    first,
                    state: State::Resting,
                    leases: 0,
                    used: Instant::now(),
                    was_ready: false,
                    trouble: None,
                });
                let last = entries.len() - 1;
                Ok(self.start(&mut entries[last]))
            }
            Some(entry) if matches!(entry.state, State::Failed { .. }) => {
                entry.spec = spec;
                Ok(self.start(entry))
            }
            Some(_) => {
                let what = format!("the model `{}` is there already; unload it first, or give another name", spec.id);
                Err(Fault::new(FaultKind::Conflict, what).at("name"))
            }
        }
    }

    /// Forgets a model. Requests that hold it finish; its memory is free when the last has.
    pub fn unload(&self, name: &str) -> Result<String, Fault> {
        let (id, served) = {
            let mut entries = self.entries();
            let Some(i) = entries.iter().position(|e| e.spec.is_called(name)) else {
                let what = format!("there is no model `{name}` here");
                return Err(Fault::new(FaultKind::NoModel, what).at("model"));
            };
            let mut entry = entries.remove(i);
            (entry.spec.id.clone(), entry.take())
        };
        tracing::info!(model = id, "unloaded");
        self.changed();
        drop(served);
        Ok(id)
    }

    /// Lets models rest that nobody used for so long.
    pub(crate) fn sweep(&self, idle: Duration) {
        let mut gone = Vec::new();
        for entry in self.entries().iter_mut() {
            if entry.leases == 0 && matches!(entry.state, State::Ready(_)) && entry.used.elapsed() >= idle {
                tracing::info!(model = entry.spec.id, "unloaded: nobody asked for it in {} s", idle.as_secs_f64());
                gone.extend(entry.take());
            }
        }
        if !gone.is_empty() {
            self.changed();
        }
    }

    /// Why nothing can be served, where every model that the server began with failed.
    pub(crate) fn hopeless(&self) -> Option<String> {
        let why = |e: &Entry| match &e.state {
            State::Failed { why } => Some(format!("`{}` could not be loaded: {why}", e.spec.id)),
            _ => None,
        };
        let entries = self.entries();
        let whys: Option<Vec<String>> = entries.iter().map(why).collect();
        whys.filter(|whys| !whys.is_empty()).map(|whys| whys.join("; "))
    }

    /// Begins to load what an entry asks for, on a thread of its own.
    pub(super) fn start(self: &Arc<Self>, entry: &mut Entry) -> Arc<Gauge> {
        let gauge = Arc::new(Gauge::new(&entry.spec.id));
        entry.state = State::Loading(gauge.clone());
        let (house, spec, told) = (self.clone(), entry.spec.clone(), gauge.clone());
        let body = move || {
            step_back();
            let begun = Instant::now();
            let made = catch_unwind(AssertUnwindSafe(|| house.make(&spec, &told)));
            let made =
                made.unwrap_or_else(|_| Err(Trouble::Other("internal error while loading, please report it".into())));
            match &made {
                Ok(served) => {
                    let plan = served.model.loaded().plan();
                    let seconds = begun.elapsed().as_secs_f64();
                    tracing::info!(model = spec.id, task = %served.task, device = %plan.device, dtype = %plan.dtype,
                        seconds, "ready");
                }
                Err(trouble) => tracing::error!(model = spec.id, "cannot be loaded: {}", trouble.why()),
            }
            house.settle(&spec.id, &told, made);
        };
        if let Err(e) = std::thread::Builder::new().name(format!("load {}", entry.spec.id)).spawn(body) {
            entry.state = State::Failed { why: format!("no thread to load it on: {e}") };
        }
        self.changed();
        gauge
    }

    /// Puts what came of loading where it belongs, unless the entry has moved on meanwhile.
    fn settle(&self, id: &str, gauge: &Arc<Gauge>, made: Result<Served, Trouble>) {
        let mut left = None;
        {
            let mut entries = self.entries();
            let mine =
                |e: &&mut Entry| e.spec.id == id && matches!(&e.state, State::Loading(now) if Arc::ptr_eq(now, gauge));
            match (entries.iter_mut().find(mine), made) {
                (Some(entry), Ok(served)) => {
                    entry.used = Instant::now();
                    entry.was_ready = true;
                    entry.state = State::Ready(Arc::new(served));
                }
                (Some(entry), Err(Trouble::Other(why))) if !entry.was_ready => entry.state = State::Failed { why },
                // What was there before, or would be if others were not, may come yet.
                (Some(entry), Err(trouble)) => (entry.state, entry.trouble) = (State::Resting, Some(trouble)),
                (None, made) => left = made.ok(),
            }
        }
        self.changed();
        drop(left);
    }

    /// Finds, plans, makes room for, and loads a model.
    fn make(&self, spec: &ModelSpec, gauge: &Gauge) -> Result<Served, Trouble> {
        let say = |e: &dyn std::fmt::Display| Trouble::Other(e.to_string());
        gauge.stage("finding its files");
        let reference: Reference = spec.reference.parse().map_err(|e| say(&e))?;
        let files = resolve(&reference, &spec.load.hub, gauge).map_err(|e| say(&e))?;
        gauge.note(&format!("files: {}", files.origin));
        gauge.stage("planning");
        let task = spec.task.map_or_else(|| Task::detect(files.root()), Ok).map_err(|e| say(&e))?;
        let (devices, _) = spec.load.device.candidates(spec.load.fallback);
        let device = *devices.first().ok_or_else(|| say(&"there is no device to run on"))?;
        let plan = task.plan(&files, device, &spec.load).map_err(|e| say(&e))?;
        let room = self.make_room(plan.bytes())?;
        gauge.stage("loading");
        let model = task.load(&files, &spec.load, gauge).map_err(|e| say(&e))?;
        Ok(Served { id: spec.id.clone(), task, model, created: SystemTime::now(), room })
    }

    /// Room for `bytes` more in the budget. Models that nobody uses go, those unused the longest first.
    fn make_room(&self, bytes: u64) -> Result<super::Room, Trouble> {
        let most = self.most_bytes.unwrap_or(u64::MAX);
        let mib = |n: u64| n / (1 << 20);
        if bytes > most {
            let (bytes, most) = (mib(bytes), mib(most));
            return Err(Trouble::Other(format!(
                "it needs {bytes} MiB of a budget of {most} MiB; raise --memory-budget"
            )));
        }
        loop {
            if let Some(room) = self.budget.take(bytes, most) {
                return Ok(room);
            }
            let Some(leaving) = self.evict_oldest() else {
                let (bytes, taken, most) = (mib(bytes), mib(self.budget.taken()), mib(most));
                return Err(Trouble::Room(format!(
                    "it needs {bytes} MiB, {taken} MiB of the budget of {most} MiB are taken, and no model is idle; unload \
                     one, or raise --memory-budget"
                )));
            };
            // Somebody may be looking at it still. Nobody does for long.
            let begun = Instant::now();
            while leaving.strong_count() > 0 && begun.elapsed() < LEAVING {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Lets the model go that nobody uses and nobody used the longest. Its room is free when what is returned has no owner.
    fn evict_oldest(&self) -> Option<Weak<()>> {
        let served = {
            let mut entries = self.entries();
            let idle = entries.iter_mut().filter(|e| e.leases == 0 && matches!(e.state, State::Ready(_)));
            let entry = idle.min_by_key(|e| e.used)?;
            tracing::info!(model = entry.spec.id, "evicted: another model needs its room");
            entry.take()
        };
        self.changed();
        served.map(|served| served.room.watched())
    }
}

/// Lets threads that answer go before this one and those that it starts, which are a model's own: on a machine that is all busy
/// computing, whoever asks for our health, or sends a request, would wait until a matrix product has used up its slice.
fn step_back() {
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::nice(5) {
        tracing::debug!("a model's threads keep their priority: {e}");
    }
}

impl Entry {
    /// Takes the model out, if it is there.
    fn take(&mut self) -> Option<Guest> {
        match std::mem::replace(&mut self.state, State::Resting) {
            State::Ready(served) => Some(Guest(Some(served))),
            _ => None,
        }
    }
}
