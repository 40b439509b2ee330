//! Loading, unloading and evicting models.

use super::{Entry, LoadError, LoadProgress, ModelHandle, ModelManager, ModelSpec, State};
use crate::error::{Fault, FaultKind};
use crate::served_model::ServedModel;
use sconce_engine::Task;
use sconce_engine::hub::{Progress, Reference, resolve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for an evicted model to release its memory.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(10);

impl ModelManager {
    /// Adds a model given at start-up and starts loading it.
    pub(crate) fn register(self: &Arc<Self>, spec: ModelSpec) -> Result<(), Fault> {
        self.add(spec, true).map(drop)
    }

    /// Adds a model and starts loading it. Fails if a model has the same name, unless that model
    /// failed to load.
    pub fn load(self: &Arc<Self>, spec: ModelSpec) -> Result<Arc<LoadProgress>, Fault> {
        self.add(spec, false)
    }

    fn add(self: &Arc<Self>, spec: ModelSpec, initial: bool) -> Result<Arc<LoadProgress>, Fault> {
        let mut entries = self.entries();
        if let Some(other) = entries.iter().find(|e| e.spec.id != spec.id && e.spec.is_called(&spec.id)) {
            let what = format!("the name `{}` is already an alias of the model `{}`", spec.id, other.spec.id);
            return Err(Fault::new(FaultKind::Conflict, what).at("name"));
        }
        match entries.iter_mut().find(|e| e.spec.id == spec.id) {
            None => {
                entries.push(Entry::unloaded(spec, initial));
                let last = entries.len() - 1;
                Ok(self.start(&mut entries[last]))
            }
            Some(entry) if matches!(entry.state, State::Failed { .. }) => {
                entry.spec = spec;
                Ok(self.start(entry))
            }
            Some(_) => {
                let what =
                    format!("a model named `{}` is already there; unload it first, or choose another `name`", spec.id);
                Err(Fault::new(FaultKind::Conflict, what).at("name"))
            }
        }
    }

    /// Removes a model. Requests that hold a lease finish; the memory is released with the last
    /// lease.
    pub fn unload(&self, name: &str) -> Result<String, Fault> {
        let (id, served) = {
            let mut entries = self.entries();
            let Some(i) = entries.iter().position(|e| e.spec.is_called(name)) else {
                let what = format!("there is no model `{name}` on this server");
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

    /// The errors of all models, if every model failed to load.
    pub(crate) fn all_failed(&self) -> Option<String> {
        let why = |e: &Entry| match &e.state {
            State::Failed { why } => Some(format!("`{}` could not be loaded: {why}", e.spec.id)),
            _ => None,
        };
        let entries = self.entries();
        let errors: Option<Vec<String>> = entries.iter().map(why).collect();
        errors.filter(|errors| !errors.is_empty()).map(|errors| errors.join("; "))
    }

    /// Starts a thread that loads the entry's model.
    pub(super) fn start(self: &Arc<Self>, entry: &mut Entry) -> Arc<LoadProgress> {
        let progress = Arc::new(LoadProgress::new(&entry.spec.id));
        entry.state = State::Loading(progress.clone());
        let (manager, spec, recorder) = (self.clone(), entry.spec.clone(), progress.clone());
        let body = move || {
            lower_priority();
            let started_at = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| manager.load_model(&spec, &recorder)));
            let result = result
                .unwrap_or_else(|_| Err(LoadError::Other("internal error while loading, please report it".into())));
            match &result {
                Ok(served) => {
                    let plan = served.model.loaded().plan();
                    let seconds = started_at.elapsed().as_secs_f64();
                    tracing::info!(model = spec.id, task = %served.task, device = %plan.runs_on(), dtype = %plan.dtype,
                        seconds, "ready");
                }
                Err(error) => tracing::error!(model = spec.id, "cannot load the model: {}", error.why()),
            }
            manager.finish_load(&spec.id, &recorder, result);
        };
        if let Err(e) = std::thread::Builder::new().name(format!("load {}", entry.spec.id)).spawn(body) {
            entry.state = State::Failed { why: format!("cannot start the thread that loads it: {e}") };
        }
        self.changed();
        progress
    }

    /// Stores the result of loading in its entry, unless the entry was removed or restarted
    /// meanwhile.
    fn finish_load(&self, id: &str, progress: &Arc<LoadProgress>, result: Result<ServedModel, LoadError>) {
        let mut orphan = None;
        {
            let mut entries = self.entries();
            let is_this_load = |e: &&mut Entry| {
                e.spec.id == id && matches!(&e.state, State::Loading(now) if Arc::ptr_eq(now, progress))
            };
            match (entries.iter_mut().find(is_this_load), result) {
                (Some(entry), Ok(served)) => {
                    entry.used = Instant::now();
                    entry.was_ready = true;
                    entry.state = State::Ready(Arc::new(served));
                }
                (Some(entry), Err(LoadError::Other(why))) if !entry.was_ready => entry.state = State::Failed { why },
                // A model that was ready before, or only lacks memory, may load later.
                (Some(entry), Err(error)) => (entry.state, entry.last_error) = (State::Unloaded, Some(error)),
                (None, result) => orphan = result.ok(),
            }
        }
        self.changed();
        drop(orphan);
    }

    /// Resolves the files of a model, plans it, reserves its memory and loads it.
    fn load_model(&self, spec: &ModelSpec, progress: &LoadProgress) -> Result<ServedModel, LoadError> {
        let other = |e: &dyn std::fmt::Display| LoadError::Other(e.to_string());
        progress.stage("resolving files");
        let reference: Reference = spec.reference.parse().map_err(|e| other(&e))?;
        let files = resolve(&reference, &spec.load.hub_options(), progress).map_err(|e| other(&e))?;
        progress.note(&format!("files: {}", files.origin));
        progress.stage("planning");
        let task = spec.task.map_or_else(|| Task::detect(files.root()), Ok).map_err(|e| other(&e))?;
        let (devices, _) = spec.load.device.candidates(spec.load.fallback);
        let device = *devices.first().ok_or_else(|| other(&"no device is available"))?;
        let load = spec.load.clone().with_memory(self.max_bytes);
        let plan = task.plan(&files, device, &load).map_err(|e| other(&e))?;
        let reservation = self.reserve(plan.bytes())?;
        progress.stage("loading");
        let model = task.load(&files, &load, progress).map_err(|e| other(&e))?;
        let layers = progress.snapshot().layers_total;
        Ok(ServedModel { id: spec.id.clone(), task, model, layers, created: SystemTime::now(), reservation })
    }

    /// Reserves `bytes` of the budget. Evicts models without leases, least recently used first.
    fn reserve(&self, bytes: u64) -> Result<super::Reservation, LoadError> {
        let limit = self.max_bytes.unwrap_or(u64::MAX);
        let mib = |n: u64| n / (1 << 20);
        if bytes > limit {
            let (bytes, limit) = (mib(bytes), mib(limit));
            return Err(LoadError::Other(format!(
                "it needs {bytes} MiB, and the memory budget is {limit} MiB; raise --memory-budget"
            )));
        }
        loop {
            if let Some(reservation) = self.budget.reserve(bytes, limit) {
                return Ok(reservation);
            }
            let Some(evicted) = self.evict_lru() else {
                let (bytes, taken, limit) = (mib(bytes), mib(self.budget.reserved()), mib(limit));
                return Err(LoadError::NoMemory(format!(
                    "it needs {bytes} MiB; {taken} MiB of the {limit} MiB budget are in use and no model is idle; unload \
                     one, or raise --memory-budget"
                )));
            };
            // A status request may still hold the model for a moment.
            let started_at = Instant::now();
            while evicted.strong_count() > 0 && started_at.elapsed() < EVICTION_TIMEOUT {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Evicts the least recently used model without leases. Its reservation is free when the
    /// returned `Weak` has no owner.
    fn evict_lru(&self) -> Option<Weak<()>> {
        let served = {
            let mut entries = self.entries();
            let idle = entries.iter_mut().filter(|e| e.leases == 0 && matches!(e.state, State::Ready(_)));
            let entry = idle.min_by_key(|e| e.used)?;
            tracing::info!(model = entry.spec.id, "evicted: another model needs its memory (--memory-budget)");
            entry.take()
        };
        self.changed();
        served.map(|served| served.reservation.released())
    }
}

/// Lowers the priority of this thread and of the model's threads that it starts. On a machine that
/// is busy computing, health checks and new requests would otherwise wait until a matrix product
/// has used up its time slice.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::nice(5) {
        tracing::debug!("cannot lower the priority of the model's threads: {e}");
    }
}

impl Entry {
    /// Takes the model out of a ready entry. When it is loaded again, the server's idle time-out holds.
    pub(super) fn take(&mut self) -> Option<ModelHandle> {
        self.keep_alive = None;
        match std::mem::replace(&mut self.state, State::Unloaded) {
            State::Ready(served) => Some(ModelHandle(Some(served))),
            _ => None,
        }
    }
}
