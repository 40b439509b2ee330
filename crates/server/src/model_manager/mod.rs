//! The model manager: the list of models, their states, and the leases that requests hold.
//!
//! One mutex guards the list, and no code waits while holding it. Each model loads on its own
//! thread while others serve. A [`Lease`] pins a model: a leased model is never evicted, and a
//! model that is unloaded while leased is freed with its last lease.

mod budget;
mod keep_alive;
mod load;
mod progress;
mod spec;

pub use budget::Reservation;
pub use progress::LoadProgress;
pub use spec::ModelSpec;

use crate::error::{Fault, FaultKind};
use crate::served_model::{RequestKind, ServedModel};
use budget::Budget;
use sconce_api::ollama::KeepAlive;
use sconce_engine::LoadOptions;
use serde_json::json;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// `Retry-After` for a model that is loading.
const LOADING_RETRY: Duration = Duration::from_secs(2);

/// Model names that mean "any model". huggingface_hub sends the first for a URL without a model
/// name.
const ANY: [&str; 3] = ["dummy", "tgi", ""];

/// Loads, unloads and lends the models of a server.
pub struct ModelManager {
    entries: Mutex<Vec<Entry>>,
    /// Counts state changes, for tasks that wait for one.
    changes: watch::Sender<u64>,
    budget: Budget,
    max_bytes: Option<u64>,
    /// Load options of models that are loaded at run time.
    defaults: LoadOptions,
}

struct Entry {
    spec: ModelSpec,
    /// Given at start-up, not at run time.
    initial: bool,
    state: State,
    leases: usize,
    used: Instant,
    /// How long a request asked to keep it loaded.
    keep_alive: Option<KeepAlive>,
    /// It was ready before.
    was_ready: bool,
    /// Why the last reload failed.
    last_error: Option<LoadError>,
}

/// Why a model failed to load.
#[derive(Clone, Debug)]
enum LoadError {
    /// Not enough budget; unloading other models may help.
    NoMemory(String),
    /// Any other error.
    Other(String),
}

impl LoadError {
    fn why(&self) -> &str {
        match self {
            LoadError::NoMemory(why) | LoadError::Other(why) => why,
        }
    }

    /// The error for a request that names the model `id`.
    fn fault(&self, id: &str) -> Fault {
        let kind = match self {
            LoadError::NoMemory(_) => FaultKind::Memory,
            LoadError::Other(_) => FaultKind::Unhealthy,
        };
        let what = format!("the model `{id}` could not be loaded: {}; loading again, retry in a moment", self.why());
        Fault::new(kind, what).retry_after(LOADING_RETRY)
    }
}

enum State {
    Loading(Arc<LoadProgress>),
    Ready(Arc<ServedModel>),
    Failed {
        why: String,
    },
    /// Idle or evicted: the next request loads it again.
    Unloaded,
}

/// Status of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelStatus {
    /// Loading, with its progress.
    Loading(sconce_api::admin::Progress),
    /// Ready for requests.
    Ready,
    /// Loading failed, with the error.
    Failed(String),
    /// Not in memory; the next request loads it again.
    Unloaded,
    /// Reloading failed, with the error; the next request tries again.
    ReloadFailed(String),
}

impl ModelStatus {
    /// The name that the API and metrics use. `resting` is the wire name of an unloaded model.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ModelStatus::Loading(_) => "loading",
            ModelStatus::Ready => "ready",
            ModelStatus::Failed(_) => "failed",
            ModelStatus::Unloaded | ModelStatus::ReloadFailed(_) => "resting",
        }
    }
}

/// A model and its status, for lists.
#[derive(Clone)]
pub struct ModelSummary {
    /// Its specification.
    pub spec: ModelSpec,
    /// Its status.
    pub status: ModelStatus,
    /// Leases that requests hold.
    pub leases: usize,
    /// The model, if it is loaded.
    pub served: Option<ModelHandle>,
    /// When its last request ended.
    pub(crate) used: Instant,
    /// How long a request asked to keep it loaded.
    pub(crate) keep_alive: Option<KeepAlive>,
}

impl ModelManager {
    pub(crate) fn new(max_bytes: Option<u64>, defaults: LoadOptions) -> Arc<ModelManager> {
        let changes = watch::Sender::new(0);
        Arc::new(ModelManager { entries: Mutex::default(), changes, budget: Budget::default(), max_bytes, defaults })
    }

    /// Load options of models that are loaded at run time.
    pub fn defaults(&self) -> LoadOptions {
        self.defaults.clone()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// A receiver that is notified of every state change of a model.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Leases a model that supports `kind`: the named one, or the first that does.
    pub fn lease(self: &Arc<Self>, name: Option<&str>, kind: RequestKind) -> Result<Lease, Fault> {
        let mut entries = self.entries();
        let Some(i) = find(&entries, name, kind) else {
            return Err(match name.filter(|name| !ANY.contains(name)) {
                Some(name) => {
                    let known: Vec<&str> = entries.iter().map(|e| e.spec.id.as_str()).collect();
                    let what = format!("there is no model `{name}` on this server; available: {}", known.join(", "));
                    Fault::new(FaultKind::NoModel, what).at("model")
                }
                None => {
                    Fault::new(FaultKind::UnsupportedTask, format!("no model on this server {}", kind.description()))
                        .at("model")
                }
            });
        };
        let entry = &mut entries[i];
        match &entry.state {
            State::Ready(served) if kind.fits(served.task) => {
                let served = served.clone();
                entry.leases += 1;
                entry.used = Instant::now();
                Ok(Lease { models: self.clone(), served: ModelHandle(Some(served)) })
            }
            State::Ready(served) => Err(served.unsupported(kind)),
            State::Loading(progress) => Err(loading(progress)),
            State::Failed { why } => {
                let what = format!("the model `{}` could not be loaded: {why}", entry.spec.id);
                Err(Fault::new(FaultKind::LoadFailed, what))
            }
            State::Unloaded => {
                // If the last reload failed, report that error while loading again.
                let last_error = entry.last_error.take();
                let progress = self.start(entry);
                Err(last_error.map_or_else(|| loading(&progress), |last_error| last_error.fault(&entry.spec.id)))
            }
        }
    }

    /// All models, in the order in which they were added.
    pub fn list(&self) -> Vec<ModelSummary> {
        self.entries().iter().map(Entry::summary).collect()
    }

    /// `Ok` if every model given at start-up is ready or unloaded; otherwise the progress or error
    /// of one that is not.
    pub fn ready(&self) -> Result<(), Fault> {
        for entry in self.entries().iter().filter(|e| e.initial) {
            match &entry.state {
                State::Loading(progress) => return Err(loading(progress)),
                State::Failed { why } => {
                    let what = format!("the model `{}` could not be loaded: {why}", entry.spec.id);
                    return Err(Fault::new(FaultKind::LoadFailed, what));
                }
                State::Ready(_) | State::Unloaded => {}
            }
        }
        Ok(())
    }

    /// Whether there is a model of this name. Names that mean any model are accepted, as in a request.
    pub(crate) fn knows(&self, name: &str) -> bool {
        ANY.contains(&name) || self.entries().iter().any(|entry| entry.spec.is_called(name))
    }

    /// Whether requests wait in the queue of a model.
    pub(crate) fn has_waiting_requests(&self) -> bool {
        let waits = |entry: &Entry| match &entry.state {
            State::Ready(served) => served.model.loaded().queue().requests > 0,
            State::Loading(_) | State::Failed { .. } | State::Unloaded => false,
        };
        self.entries().iter().any(waits)
    }

    /// Waits until no model is loading.
    pub async fn settled(&self) {
        let is_loading = |e: &Entry| matches!(e.state, State::Loading(_));
        let mut changes = self.changes();
        while self.entries().iter().any(is_loading) && changes.changed().await.is_ok() {}
    }

    /// Planned bytes of all models that are loaded or loading.
    pub fn planned_bytes(&self) -> u64 {
        self.budget.reserved()
    }
}

/// The entry that a request means.
fn find(entries: &[Entry], name: Option<&str>, kind: RequestKind) -> Option<usize> {
    let known = |name: &str| entries.iter().any(|e| e.spec.is_called(name));
    if let Some(name) = name.filter(|name| known(name) || !ANY.contains(name)) {
        let exact = entries.iter().position(|e| e.spec.id == name);
        return exact.or_else(|| entries.iter().position(|e| e.spec.is_called(name)));
    }
    let fits = |e: &Entry| matches!(&e.state, State::Ready(served) if kind.fits(served.task));
    // A model that is not ready might support the request: its progress or error is more useful
    // than "no model supports this". Models that failed to load at run time are skipped: their
    // client got the error.
    let excluded =
        |e: &Entry| matches!(e.state, State::Ready(_)) || (matches!(e.state, State::Failed { .. }) && !e.initial);
    let may_fit = |e: &Entry| e.spec.task.is_none_or(|task| kind.fits(task)) && !excluded(e);
    entries.iter().position(fits).or_else(|| entries.iter().position(may_fit))
}

fn loading(progress: &LoadProgress) -> Fault {
    let now = progress.snapshot();
    let percent = now.percent.map_or(String::new(), |p| format!(" ({p:.0} %)"));
    let what = format!("the model `{}` is loading: {}{percent}; retry in a moment", now.model, now.stage);
    let details = json!({"model": now.model, "stage": now.stage, "percent": now.percent});
    Fault::new(FaultKind::Loading, what).retry_after(LOADING_RETRY).details(details)
}

impl Entry {
    fn summary(&self) -> ModelSummary {
        let (status, served) = match &self.state {
            State::Loading(progress) => (ModelStatus::Loading(progress.snapshot()), None),
            State::Ready(served) => (ModelStatus::Ready, Some(ModelHandle(Some(served.clone())))),
            State::Failed { why } => (ModelStatus::Failed(why.clone()), None),
            State::Unloaded => {
                let reload_failed = |last_error: &LoadError| ModelStatus::ReloadFailed(last_error.why().to_owned());
                (self.last_error.as_ref().map_or(ModelStatus::Unloaded, reload_failed), None)
            }
        };
        let (used, keep_alive) = (self.used, self.keep_alive);
        ModelSummary { spec: self.spec.clone(), status, leases: self.leases, served, used, keep_alive }
    }
}

/// A request's use of a model. Dropping it records the time of last use.
pub struct Lease {
    models: Arc<ModelManager>,
    served: ModelHandle,
}

impl Lease {
    /// The leased model.
    pub fn served(&self) -> &ServedModel {
        &self.served
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut idle = None;
        {
            let mut entries = self.models.entries();
            // A model that was unloaded and loaded again meanwhile is another instance.
            let holds = |e: &&mut Entry| matches!(&e.state, State::Ready(there) if self.served.is(there));
            if let Some(entry) = entries.iter_mut().find(holds) {
                entry.leases = entry.leases.saturating_sub(1);
                entry.used = Instant::now();
                // With a `keep_alive` of 0 the model goes at once.
                idle = entry.take_idle(None);
            }
        }
        self.models.retire(idle.into_iter().collect());
    }
}

/// Shared handle of a loaded model. Dropping the last one would block until the model's thread
/// ends, so a separate thread does that.
#[derive(Clone)]
pub struct ModelHandle(Option<Arc<ServedModel>>);

impl ModelHandle {
    fn is(&self, other: &Arc<ServedModel>) -> bool {
        self.0.as_ref().is_some_and(|this| Arc::ptr_eq(this, other))
    }
}

impl std::ops::Deref for ModelHandle {
    type Target = ServedModel;
    fn deref(&self) -> &ServedModel {
        // Only `drop` takes the value.
        self.0.as_ref().expect("a handle has its model until it is dropped")
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            let name = format!("retire {}", last.id);
            // If no thread can be started, the closure is dropped here, and this thread waits.
            let _ = std::thread::Builder::new().name(name).spawn(move || drop(last));
        }
    }
}
