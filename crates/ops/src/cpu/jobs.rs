//! Jobs: work of the thread team that belongs to no op, such as packing weights, tokenizing and
//! decoding images.
//!
//! Several callers may each have a job. A caller runs the tasks of its own job, and workers help
//! while no op needs them. A worker checks for an op after every task, so a long job does not delay
//! ops, and an op takes the workers from a job only while it runs.
#![allow(unsafe_code, reason = "workers borrow the caller's closure, which waits for them before it returns")]

use super::team::Task;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// Queue of jobs that have tasks left, oldest first.
#[derive(Default)]
pub(super) struct Jobs {
    open: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Job>>>,
}

struct Job {
    /// The closure, which lives as long as the caller waits.
    run: *const Task<'static>,
    tasks: usize,
    /// The first task that no thread has taken.
    next: AtomicUsize,
    /// Tasks that have not finished.
    left: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

// SAFETY: the pointer is to a closure that is Sync. A thread dereferences it only while it runs a
// task, and the caller waits for all tasks.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Jobs {
    /// Whether a job may have tasks left.
    pub(super) fn any(&self) -> bool {
        self.open.load(SeqCst) != 0
    }

    /// Runs tasks of the oldest job until it has none left or `should_stop` returns true.
    pub(super) fn help(&self, should_stop: impl Fn() -> bool) {
        let Some(job) = lock(&self.queue).front().cloned() else { return };
        while !should_stop() {
            if !job.run_next() {
                return self.close(&job);
            }
        }
    }

    /// Runs tasks 0 to `tasks` − 1 together with the workers that `wake` wakes. Panics after all
    /// tasks have finished if one of them panicked.
    pub(super) fn run(&self, tasks: usize, run: &Task<'_>, wake: impl FnOnce()) {
        let job = Arc::new(Job {
            // SAFETY: the lifetime is erased only until this function has seen every task finish.
            run: unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(run) },
            tasks,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(tasks),
            panic: Mutex::new(None),
            caller: thread::current(),
        });
        {
            let mut queue = lock(&self.queue);
            queue.push_back(job.clone());
            self.open.fetch_add(1, SeqCst);
        }
        wake();
        while job.run_next() {}
        self.close(&job);
        while job.left.load(Acquire) != 0 {
            thread::park();
        }
        if let Some(panic) = lock(&job.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Removes a job whose tasks are all taken.
    fn close(&self, job: &Arc<Job>) {
        let mut queue = lock(&self.queue);
        if let Some(i) = queue.iter().position(|other| Arc::ptr_eq(other, job)) {
            queue.remove(i);
            self.open.fetch_sub(1, SeqCst);
        }
    }
}

impl Job {
    /// Runs the next task; returns false if there is none. After a panic the remaining tasks are
    /// skipped.
    fn run_next(&self) -> bool {
        // Never counts beyond the last task, however often it is called.
        let next = |next: usize| (next < self.tasks).then_some(next + 1);
        let Ok(task) = self.next.fetch_update(Relaxed, Relaxed, next) else { return false };
        if lock(&self.panic).is_none() {
            // SAFETY: this task has not finished, so the caller waits and its closure is alive.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| unsafe { (*self.run)(task) })) {
                lock(&self.panic).get_or_insert(panic);
            }
        }
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.caller.unpark();
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
