//! What a forked process must not touch: the threads and connections behind it are its parent's.

use crate::call::detached;
use crate::error::exception;
use crate::fork::fork_count;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// A value that can be closed, and that only the process which made it uses.
pub(crate) struct Handle<T: ?Sized + Send + Sync + 'static> {
    /// What it is, for errors.
    name: &'static str,
    /// `None` after `close`.
    value: Mutex<Option<Arc<T>>>,
    forks: u64,
}

impl<T: ?Sized + Send + Sync + 'static> Handle<T> {
    pub(crate) fn new(name: &'static str, value: Arc<T>) -> Handle<T> {
        Handle { name, value: Mutex::new(Some(value)), forks: fork_count() }
    }

    /// The value, unless it was closed or belongs to the parent of this process.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        let name = self.name;
        if self.forks != fork_count() {
            let what = format!("the {name} was loaded before this process was forked");
            return Err(exception(py, "DeviceError", &what));
        }
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).clone();
        value.ok_or_else(|| exception(py, "ClosedError", &format!("the {name} is closed; load it again")))
    }

    /// Drops the value when the calls in progress have ended.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        // In a forked process, another thread may have held the lock.
        if self.forks != fork_count() {
            return Ok(());
        }
        detached(py, || {
            let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(value);
            Ok(())
        })
    }
}

impl<T: ?Sized + Send + Sync + 'static> Drop for Handle<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.forks != fork_count() {
            // Its device thread does not exist in this process, and unloading would wait for it.
            std::mem::forget(value);
        } else if value.is_some() {
            // Unloading waits for the device thread. Other Python threads run meanwhile.
            Python::try_attach(|py| py.detach(|| drop(value)));
        }
    }
}
