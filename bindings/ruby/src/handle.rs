//! A loaded model as a Ruby object holds it.

use crate::error::failure;
use crate::{fork, gvl};
use magnus::{Error, Ruby};
use std::sync::{Mutex, PoisonError};

/// A model that can be closed, and that a forked process does not touch.
pub(crate) struct Handle<T: Send> {
    model: Mutex<Option<T>>,
    /// The process whose threads run the model.
    process: u32,
}

impl<T: Clone + Send> Handle<T> {
    pub(crate) fn new(model: T) -> Handle<T> {
        Handle { model: Mutex::new(Some(model)), process: std::process::id() }
    }

    /// The model, unless it is closed or belongs to another process.
    pub(crate) fn get(&self, ruby: &Ruby) -> Result<T, Error> {
        fork::check();
        if self.process != std::process::id() {
            return Err(failure(
                ruby,
                "this model was loaded before a fork and runs in the parent only: load it again",
            ));
        }
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.clone().ok_or_else(|| failure(ruby, "this model is closed"))
    }

    /// Unloads the model when its last request has ended.
    pub(crate) fn close(&self) {
        let model = self.take();
        gvl::release(|| drop(model));
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

impl<T: Send> Drop for Handle<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
