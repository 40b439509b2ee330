//! Work without the Ruby VM lock (GVL).
//!
//! A model runs on threads of its own; the Ruby thread waits for the result without the lock. Its
//! unblock function only ends the wait: then pending interrupts are checked with the lock held. An
//! exception (Ctrl-C, `Thread#kill`, `Timeout`) cancels the work; a signal whose handler returns
//! does not, and the wait goes on.

#![allow(unsafe_code, reason = "Ruby's thread functions are C")]

use crate::error::failure;
use crate::fork;
use crate::guard::bug;
use magnus::rb_sys::protect;
use magnus::{Error, Ruby};
use sconce_engine::RequestContext;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Items from other threads, for a Ruby thread that waits for them.
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
    is_interrupted: bool,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Arc<Inbox<T>> {
        let state = State { items: VecDeque::new(), is_closed: false, is_interrupted: false };
        Arc::new(Inbox { state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(crate) fn push(&self, item: T) {
        self.lock().items.push_back(item);
        self.changed.notify_all();
    }

    /// Marks the end: no item will be pushed after this.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let is_waiting = |s: &mut State<T>| s.items.is_empty() && !s.is_closed && !s.is_interrupted;
        drop(self.changed.wait_while(self.lock(), is_waiting).unwrap_or_else(PoisonError::into_inner));
    }

    fn interrupt(&self) {
        self.lock().is_interrupted = true;
        self.changed.notify_all();
    }

    /// The next item, waited for without the lock; `None` if nothing more will come. An error is
    /// the exception that interrupted the wait.
    pub(crate) fn next(&self) -> Result<Option<T>, Error> {
        extern "C" fn wait<T>(inbox: *mut c_void) -> *mut c_void {
            // SAFETY: `next` passes an inbox that lives until the call returns.
            unsafe { &*inbox.cast::<Inbox<T>>() }.wait();
            ptr::null_mut()
        }
        extern "C" fn unblock<T>(inbox: *mut c_void) {
            // SAFETY: as above.
            unsafe { &*inbox.cast::<Inbox<T>>() }.interrupt();
        }
        loop {
            let mut state = self.lock();
            state.is_interrupted = false;
            if let Some(item) = state.items.pop_front() {
                return Ok(Some(item));
            }
            if state.is_closed {
                return Ok(None);
            }
            drop(state);
            let inbox = ptr::from_ref(self).cast_mut().cast::<c_void>();
            // SAFETY: the function touches no Ruby object. This variant of the call does not raise;
            // the check for interrupts below does, and is protected.
            unsafe { rb_sys::rb_thread_call_without_gvl2(Some(wait::<T>), inbox, Some(unblock::<T>), inbox) };
            check_interrupts()?;
        }
    }
}

/// Runs pending interrupts of this Ruby thread; an exception is returned.
fn check_interrupts() -> Result<(), Error> {
    // SAFETY: called with the lock held; `protect` catches what the check raises.
    protect(|| unsafe {
        rb_sys::rb_thread_check_ints();
        rb_sys::Qnil.into()
    })
    .map(drop)
}

/// Runs `work` on a thread of its own and waits for it without the lock. If the wait is
/// interrupted, cancels `context` and leaves the thread to end by itself. Work that does not look
/// at the context, such as an operation on arrays, then finishes in the background.
pub(crate) fn run<T: Send + 'static, E: ToString + Send + 'static>(
    ruby: &Ruby,
    context: &RequestContext,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Error> {
    fork::check();
    let inbox = Inbox::new();
    let sender = inbox.clone();
    let call = move || sender.push(catch_unwind(AssertUnwindSafe(work)));
    std::thread::Builder::new().name("sconce-call".into()).spawn(call).map_err(|e| failure(ruby, e))?;
    match inbox.next() {
        Ok(Some(Ok(result))) => result.map_err(|e| failure(ruby, e.to_string())),
        Ok(Some(Err(panic))) => Err(bug(ruby, &*panic)),
        Ok(None) => Err(failure(ruby, "internal error, please report it: a call without a result")),
        Err(interrupt) => {
            context.cancel();
            Err(interrupt)
        }
    }
}
