//! The models: which there are, which are loaded, who uses them.
//!
//! One mutex guards the list; nothing under it waits. A model is loaded on a thread of its own while others go on serving.
//! A [`Lease`] keeps a model where it is: one that is leased is never evicted, and one that was unloaded while it was leased
//! goes when the last lease does.

mod budget;
mod gauge;
mod load;
mod spec;

pub use budget::Room;
pub use gauge::Gauge;
pub use spec::ModelSpec;

use crate::error::{Fault, FaultKind};
use crate::served::{Served, Want};
use budget::Budget;
use sconce_engine::LoadOptions;
use serde_json::json;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// When to ask again for a model that is being loaded.
const LOADING_RETRY: Duration = Duration::from_secs(2);

/// Names that stand for any model: huggingface_hub sends the first where it was given an address and no name.
const ANY: [&str; 3] = ["dummy", "tgi", ""];

/// All models.
pub struct House {
    entries: Mutex<Vec<Entry>>,
    /// Counts changes of state, for those who wait for one.
    changes: watch::Sender<u64>,
    budget: Budget,
    most_bytes: Option<u64>,
    /// How models are loaded that are asked for at run time.
    defaults: LoadOptions,
}

struct Entry {
    spec: ModelSpec,
    /// Whether the server began with it.
    first: bool,
    state: State,
    leases: usize,
    used: Instant,
    /// Whether it was loaded once.
    was_ready: bool,
    /// Why it did not come back when it was asked for last.
    trouble: Option<Trouble>,
}

/// Why a model could not be loaded.
#[derive(Clone, Debug)]
enum Trouble {
    /// There was no room; there may be when others have gone.
    Room(String),
    /// Something else.
    Other(String),
}

impl Trouble {
    fn why(&self) -> &str {
        match self {
            Trouble::Room(why) | Trouble::Other(why) => why,
        }
    }

    /// What a request is told that asks for the model `id`.
    fn fault(&self, id: &str) -> Fault {
        let kind = match self {
            Trouble::Room(_) => FaultKind::Memory,
            Trouble::Other(_) => FaultKind::Unhealthy,
        };
        let what = format!("the model `{id}` could not be loaded: {}; it is tried again", self.why());
        Fault::new(kind, what).retry_after(LOADING_RETRY)
    }
}

enum State {
    Loading(Arc<Gauge>),
    Ready(Arc<Served>),
    Failed {
        why: String,
    },
    /// Nobody used it, or another needed its room: the next request brings it back.
    Resting,
}

/// How it stands with a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// Being loaded.
    Loading(sconce_api::admin::Progress),
    /// Serving.
    Ready,
    /// It could not be loaded.
    Failed(String),
    /// Not in memory; the next request brings it back.
    Resting,
    /// It could not be brought back; the next request tries again.
    Troubled(String),
}

impl Standing {
    /// In one word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Standing::Loading(_) => "loading",
            Standing::Ready => "ready",
            Standing::Failed(_) => "failed",
            Standing::Resting | Standing::Troubled(_) => "resting",
        }
    }
}

/// A model in a list.
#[derive(Clone)]
pub struct Shown {
    /// As it was asked for.
    pub spec: ModelSpec,
    /// How it stands.
    pub standing: Standing,
    /// Requests that hold it.
    pub leases: usize,
    /// The model, where it is loaded.
    pub served: Option<Guest>,
}

impl House {
    pub(crate) fn new(most_bytes: Option<u64>, defaults: LoadOptions) -> Arc<House> {
        let changes = watch::Sender::new(0);
        Arc::new(House { entries: Mutex::default(), changes, budget: Budget::default(), most_bytes, defaults })
    }

    /// How models are loaded that are asked for at run time.
    pub fn defaults(&self) -> LoadOptions {
        self.defaults.clone()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Tells of every change of a model's state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A model that can do what is wanted: by name, or the first there is.
    pub fn lease(self: &Arc<Self>, name: Option<&str>, want: Want) -> Result<Lease, Fault> {
        let mut entries = self.entries();
        let Some(i) = find(&entries, name, want) else {
            return Err(match name.filter(|name| !ANY.contains(name)) {
                Some(name) => {
                    let known: Vec<&str> = entries.iter().map(|e| e.spec.id.as_str()).collect();
                    let what = format!("there is no model `{name}` here; there is: {}", known.join(", "));
                    Fault::new(FaultKind::NoModel, what).at("model")
                }
                None => Fault::new(FaultKind::Unfit, format!("no model here {}", want.words())).at("model"),
            });
        };
        let entry = &mut entries[i];
        match &entry.state {
            State::Ready(served) if want.fits(served.task) => {
                let served = served.clone();
                entry.leases += 1;
                entry.used = Instant::now();
                Ok(Lease { house: self.clone(), served: Guest(Some(served)) })
            }
            State::Ready(served) => Err(served.unfit(want)),
            State::Loading(gauge) => Err(loading(gauge)),
            State::Failed { why } => {
                let what = format!("the model `{}` could not be loaded: {why}", entry.spec.id);
                Err(Fault::new(FaultKind::LoadFailed, what))
            }
            State::Resting => {
                // Who asks for one that would not come is told why, while it is tried again.
                let trouble = entry.trouble.take();
                let gauge = self.start(entry);
                Err(trouble.map_or_else(|| loading(&gauge), |trouble| trouble.fault(&entry.spec.id)))
            }
        }
    }

    /// All models, in the order in which they were asked for.
    pub fn list(&self) -> Vec<Shown> {
        self.entries().iter().map(Entry::shown).collect()
    }

    /// Whether every model that the server began with is there or at rest; otherwise how far one is, or why it is not.
    pub fn ready(&self) -> Result<(), Fault> {
        for entry in self.entries().iter().filter(|e| e.first) {
            match &entry.state {
                State::Loading(gauge) => return Err(loading(gauge)),
                State::Failed { why } => {
                    let what = format!("the model `{}` could not be loaded: {why}", entry.spec.id);
                    return Err(Fault::new(FaultKind::LoadFailed, what));
                }
                State::Ready(_) | State::Resting => {}
            }
        }
        Ok(())
    }

    /// Waits until no model is being loaded.
    pub async fn settled(&self) {
        let is_loading = |e: &Entry| matches!(e.state, State::Loading(_));
        let mut changes = self.changes();
        while self.entries().iter().any(is_loading) && changes.changed().await.is_ok() {}
    }

    /// Bytes of all models that are loaded or being loaded, as planned.
    pub fn planned_bytes(&self) -> u64 {
        self.budget.taken()
    }
}

/// Which entry is meant.
fn find(entries: &[Entry], name: Option<&str>, want: Want) -> Option<usize> {
    let known = |name: &str| entries.iter().any(|e| e.spec.is_called(name));
    if let Some(name) = name.filter(|name| known(name) || !ANY.contains(name)) {
        let exact = entries.iter().position(|e| e.spec.id == name);
        return exact.or_else(|| entries.iter().position(|e| e.spec.is_called(name)));
    }
    let fits = |e: &Entry| matches!(&e.state, State::Ready(served) if want.fits(served.task));
    // What is not loaded might fit; to wait for it, or to learn why it is not there, is more use than to be told that nothing fits.
    // But for one that somebody had loaded at run time and that could not be: they were told.
    let gone = |e: &Entry| matches!(e.state, State::Ready(_)) || (matches!(e.state, State::Failed { .. }) && !e.first);
    let might = |e: &Entry| e.spec.task.is_none_or(|task| want.fits(task)) && !gone(e);
    entries.iter().position(fits).or_else(|| entries.iter().position(might))
}

fn loading(gauge: &Gauge) -> Fault {
    let told = gauge.told();
    let so_far = told.percent.map_or(String::new(), |p| format!(" ({p:.0} %)"));
    let what = format!("the model `{}` is being loaded: {}{so_far}; come again in a moment", told.model, told.stage);
    let details = json!({"model": told.model, "stage": told.stage, "percent": told.percent});
    Fault::new(FaultKind::Loading, what).retry_after(LOADING_RETRY).details(details)
}

impl Entry {
    fn shown(&self) -> Shown {
        let (standing, served) = match &self.state {
            State::Loading(gauge) => (Standing::Loading(gauge.told()), None),
            State::Ready(served) => (Standing::Ready, Some(Guest(Some(served.clone())))),
            State::Failed { why } => (Standing::Failed(why.clone()), None),
            State::Resting => {
                let troubled = |trouble: &Trouble| Standing::Troubled(trouble.why().to_owned());
                (self.trouble.as_ref().map_or(Standing::Resting, troubled), None)
            }
        };
        Shown { spec: self.spec.clone(), standing, leases: self.leases, served }
    }
}

/// Somebody uses a model. Dropped, it notes the time.
pub struct Lease {
    house: Arc<House>,
    served: Guest,
}

impl Lease {
    /// The model.
    pub fn served(&self) -> &Served {
        &self.served
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut entries = self.house.entries();
        // One that was unloaded meanwhile, and is there again, is another.
        let holds = |e: &&mut Entry| matches!(&e.state, State::Ready(there) if self.served.is(there));
        if let Some(entry) = entries.iter_mut().find(holds) {
            entry.leases = entry.leases.saturating_sub(1);
            entry.used = Instant::now();
        }
    }
}

/// A model that somebody looks at. The last to let go of a model would wait for its thread to end, and may be one who must not wait.
#[derive(Clone)]
pub struct Guest(Option<Arc<Served>>);

impl Guest {
    fn is(&self, other: &Arc<Served>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, other))
    }
}

impl std::ops::Deref for Guest {
    type Target = Served;
    fn deref(&self) -> &Served {
        // Only `drop` takes it.
        self.0.as_ref().expect("a guest has its model until it is dropped")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            let name = format!("retire {}", last.id);
            // Where there is no thread to be had, waiting is the lesser evil: the closure drops it here.
            let _ = std::thread::Builder::new().name(name).spawn(move || drop(last));
        }
    }
}
