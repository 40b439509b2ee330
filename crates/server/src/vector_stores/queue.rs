//! The queue of files that wait to be indexed.

use super::store::Store;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A file that waits to be indexed.
pub(super) struct Job {
    pub(super) store: Weak<Store>,
    pub(super) file: String,
}

/// Files that wait to be indexed, first come, first served.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    is_closed: AtomicBool,
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, store: &Arc<Store>, file: &str) {
        self.push_job(Job { store: Arc::downgrade(store), file: file.to_owned() });
    }

    pub(super) fn push_job(&self, job: Job) {
        self.jobs().push_back(job);
        self.arrived.notify_one();
    }

    /// The next file; `None` if none has come within `patience`.
    pub(super) fn pop(&self, patience: Duration) -> Option<Job> {
        let wait = |jobs: &mut VecDeque<Job>| jobs.is_empty() && !self.is_closed();
        let waited = self.arrived.wait_timeout_while(self.jobs(), patience, wait);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// Ends the worker.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // With the lock, so that the worker is either waiting or has yet to look.
        let _jobs = self.jobs();
        self.arrived.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}
