//! A loaded model, or an open index, as a Ruby object holds it.

use crate::error::failure;
use crate::{fork, gvl};
use magnus::{Error, Ruby};
use sconce_engine::RequestContext;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Whether the process is ending.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// From now on, models are unloaded by the thread that drops them: no other would outlive it.
pub(crate) fn exiting(_: &Ruby) -> Result<(), Error> {
    IS_EXITING.store(true, Relaxed);
    Ok(())
}

/// A model or an index that can be closed, and that a forked process does not touch.
pub(crate) struct Handle<T: Send + 'static> {
    model: Mutex<Option<T>>,
    /// The process whose threads run the model.
    process: u32,
    /// What it is, for errors.
    name: &'static str,
}

impl<T: Clone + Send> Handle<T> {
    pub(crate) fn new(model: T) -> Handle<T> {
        Handle::named("model", model)
    }

    /// A handle to something else than a model.
    pub(crate) fn named(name: &'static str, model: T) -> Handle<T> {
        Handle { model: Mutex::new(Some(model)), process: std::process::id(), name }
    }

    /// The model, unless it is closed or belongs to another process.
    pub(crate) fn get(&self, ruby: &Ruby) -> Result<T, Error> {
        fork::check();
        let name = self.name;
        if self.process != std::process::id() {
            let why = format!("this {name} was loaded before a fork and works in the parent only: load it again");
            return Err(failure(ruby, why));
        }
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.clone().ok_or_else(|| failure(ruby, format!("this {name} is closed")))
    }

    /// Unloads the model, and waits for it without the Ruby VM lock. Requests that run keep it
    /// until they end.
    pub(crate) fn close(&self, ruby: &Ruby) -> Result<(), Error> {
        let Some(model) = self.take() else { return Ok(()) };
        gvl::run(ruby, &RequestContext::default(), move || {
            drop(model);
            Ok::<_, String>(())
        })
    }
}

impl<T: Send> Handle<T> {
    fn take(&self) -> Option<T> {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            // Its threads are not in this process: unloading would wait for them forever.
            std::mem::forget(model);
            return None;
        }
        model
    }
}

/// The garbage collector drops a handle with the Ruby VM lock held, and unloading waits for the
/// device thread: so another thread does it.
impl<T: Send> Drop for Handle<T> {
    fn drop(&mut self) {
        let Some(model) = self.take() else { return };
        if !IS_EXITING.load(Relaxed) {
            // Without a thread, the closure and the model in it are dropped here.
            let _ = thread::Builder::new().name("sconce-unload".into()).spawn(move || drop(model));
        }
    }
}
