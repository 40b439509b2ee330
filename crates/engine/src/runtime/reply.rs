//! The reply channel of a request.

use super::RequestContext;
use crate::error::{Error, Result};
use sconce_ops::Device;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Receives the outputs of a request. The device thread calls it, so it must not block.
pub(crate) type Sink<T> = Box<dyn FnMut(Result<T>) + Send>;

/// The reply channel of a request.
///
/// The sink's last item is the last output or an error; it receives an error too if the reply is
/// dropped early. Then the sink is dropped. A sink that panics receives nothing more, and its
/// request ends.
pub(crate) struct Reply<T> {
    context: RequestContext,
    device: Device,
    /// `None` once the request has ended.
    open: Mutex<Option<OpenReply<T>>>,
}

struct OpenReply<T> {
    sink: Sink<T>,
    submitted: Instant,
    started: Option<Instant>,
}

impl<T> Reply<T> {
    /// A reply for a request that runs on `device`.
    pub(crate) fn new(context: RequestContext, device: Device, sink: Sink<T>) -> Reply<T> {
        let open = OpenReply { sink, submitted: Instant::now(), started: None };
        Reply { context, device, open: Mutex::new(Some(open)) }
    }

    /// Called when the request's first step begins: ends its time in the queue. Returns whether
    /// this is the first call.
    pub(crate) fn start(&self) -> bool {
        let mut open = self.lock();
        let Some(open) = open.as_mut().filter(|open| open.started.is_none()) else { return false };
        open.started = Some(Instant::now());
        self.context.add_queue_time(open.submitted.elapsed());
        true
    }

    /// Delivers an output that is not the last.
    pub(crate) fn send(&self, output: T) {
        deliver(&mut self.lock(), Ok(output));
    }

    /// Delivers the last output.
    pub(crate) fn finish(&self, output: T) {
        self.end(Ok(output));
    }

    /// Ends the request with an error, unless it has ended.
    pub(crate) fn fail(&self, error: Error) {
        self.end(Err(error));
    }

    fn end(&self, last: Result<T>) {
        let mut guard = self.lock();
        let Some(open) = guard.as_ref() else { return };
        // Before the last delivery, because the receiver may read the timings then.
        match open.started {
            Some(started) => self.context.add_inference_time(started.elapsed()),
            None => self.context.add_queue_time(open.submitted.elapsed()),
        }
        deliver(&mut guard, last);
        *guard = None;
    }

    /// Ends the request without delivering anything.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    /// Whether the request has ended, or must end now because it was cancelled or missed its
    /// deadline.
    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        self.context.end_reason(now).is_some() || self.lock().is_none()
    }

    /// Ends a request that was cancelled or missed its deadline, with the matching error.
    pub(crate) fn end_if_due(&self, now: Instant) {
        if let Some(why) = self.context.end_reason(now) {
            self.fail(why);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<OpenReply<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.fail(Error::Stopped { device: self.device, why: "the request was dropped".into() });
    }
}

/// Catches a panic in the sink, because the device thread has other requests to serve.
fn deliver<T>(open: &mut Option<OpenReply<T>>, output: Result<T>) {
    let Some(open_reply) = open else { return };
    if catch_unwind(AssertUnwindSafe(|| (open_reply.sink)(output))).is_err() {
        *open = None;
    }
}
