//! Runs the requests of one model on its device thread: queue, steps, retries, cancellation,
//! deadlines and statistics.

use super::device_thread::{DeviceThread, catch_panic, panic_message};
use super::workload::{RequestId, Workload};
use super::{QueueStats, Reply};
use crate::error::{Error, Result};
use sconce_ops::{Device, Ladder};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

enum Message<W: Workload> {
    Submit(W::Request, Arc<Reply<W::Output>>),
    /// A function to run on the workload between two steps.
    Call(Box<dyn FnOnce(&W) + Send>),
    /// A caller has read outputs, so a step may be possible now that was not before.
    Wake,
}

/// A model on its device, shared by any number of callers.
pub(crate) struct Executor<W: Workload> {
    shared_stats: Arc<SharedStats<W::Stats>>,
    thread: DeviceThread<Message<W>>,
}

/// Statistics that any thread can read. The device thread writes them after every step.
struct SharedStats<S> {
    last: Mutex<(QueueStats, S)>,
    /// Requests that the device thread has not received yet, and their tokens.
    submitted: AtomicUsize,
    submitted_tokens: AtomicUsize,
}

impl<W: Workload> Executor<W> {
    /// Starts the device thread, which creates the workload.
    pub(crate) fn start(
        device: Device,
        ladder: Arc<Ladder>,
        make: impl FnOnce() -> Result<W> + Send + 'static,
    ) -> Result<Executor<W>> {
        let shared_stats =
            SharedStats { last: Mutex::default(), submitted: Default::default(), submitted_tokens: Default::default() };
        let shared_stats = Arc::new(shared_stats);
        let shared = shared_stats.clone();
        let run = move |workload, inbox| {
            DeviceLoop { workload, device, replies: BTreeMap::new(), next: 0, shared_stats: shared }.serve(&inbox);
        };
        Ok(Executor { shared_stats, thread: DeviceThread::start(device, ladder, make, run)? })
    }

    /// Submits a request. Outputs and errors go to its reply, unless this call itself fails.
    pub(crate) fn submit(&self, request: W::Request, reply: &Arc<Reply<W::Output>>) -> Result<()> {
        self.shared_stats.submitted.fetch_add(1, Relaxed);
        self.shared_stats.submitted_tokens.fetch_add(W::tokens(&request), Relaxed);
        self.thread.send(Message::Submit(request, reply.clone())).inspect_err(|_| reply.close())
    }

    /// Runs `f` on the device thread between two steps and waits for its result. A panic in `f`
    /// fails this call alone.
    pub(crate) fn call<R: Send + 'static>(&self, f: impl FnOnce(&W) -> Result<R> + Send + 'static) -> Result<R> {
        let (answer, answered) = channel();
        let device = self.thread.device();
        // The receiver is gone if the caller was cancelled.
        let job = move |workload: &W| drop(answer.send(catch_panic(device, || f(workload))));
        self.thread.send(Message::Call(Box::new(job)))?;
        answered.recv().map_err(|_| self.thread.stopped_error())?
    }

    /// Makes the device thread call the scheduler again.
    pub(crate) fn wake(&self) -> Result<()> {
        self.thread.send(Message::Wake)
    }

    /// Returns a function that reads the queue's length and the last batch. Cheap, from any thread.
    pub(crate) fn queue_watch(&self) -> Box<dyn Fn() -> QueueStats + Send + Sync> {
        let shared_stats = self.shared_stats.clone();
        Box::new(move || {
            let last = shared_stats.last.lock().unwrap_or_else(PoisonError::into_inner).0;
            QueueStats {
                requests: last.requests + shared_stats.submitted.load(Relaxed),
                tokens: last.tokens + shared_stats.submitted_tokens.load(Relaxed),
                ..last
            }
        })
    }

    /// The workload's own statistics. Cheap, from any thread.
    pub(crate) fn stats(&self) -> W::Stats {
        self.shared_stats.last.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// The state of the device thread.
struct DeviceLoop<W: Workload> {
    workload: W,
    device: Device,
    replies: BTreeMap<RequestId, Arc<Reply<W::Output>>>,
    next: u64,
    shared_stats: Arc<SharedStats<W::Stats>>,
}

impl<W: Workload> DeviceLoop<W> {
    /// Serves messages until there are no more senders, then finishes the running requests.
    fn serve(mut self, inbox: &Receiver<Message<W>>) {
        let mut is_open = true;
        let mut is_busy = false;
        while is_open || is_busy {
            // While there are steps to run, the thread does not block on messages.
            let mut message = match is_busy {
                true => inbox.try_recv(),
                false => inbox.recv().map_err(|_| TryRecvError::Disconnected),
            };
            while let Ok(received) = message {
                self.guarded(|this| this.handle(received));
                message = inbox.try_recv();
            }
            is_open = !matches!(message, Err(TryRecvError::Disconnected));
            is_busy = self.guarded(DeviceLoop::run_step);
        }
    }

    /// Runs `f`. A panic in it is a bug outside of the model: the scheduler's state is unknown, so
    /// every request fails.
    fn guarded(&mut self, f: impl FnOnce(&mut Self) -> bool) -> bool {
        catch_unwind(AssertUnwindSafe(|| f(self))).unwrap_or_else(|panic| {
            let why = panic_message(&*panic);
            for (_, reply) in std::mem::take(&mut self.replies) {
                reply.fail(Error::Panicked { device: self.device, why: why.clone() });
            }
            self.workload.reset();
            true
        })
    }

    fn handle(&mut self, message: Message<W>) -> bool {
        match message {
            Message::Submit(request, reply) => {
                self.shared_stats.submitted.fetch_sub(1, Relaxed);
                self.shared_stats.submitted_tokens.fetch_sub(W::tokens(&request), Relaxed);
                let id = RequestId(self.next);
                self.next += 1;
                self.replies.insert(id, reply.clone());
                self.workload.submit(id, request, &reply);
            }
            Message::Call(f) => f(&self.workload),
            Message::Wake => {}
        }
        true
    }

    /// Runs the next step. Returns whether there was one.
    fn run_step(&mut self) -> bool {
        // First release requests that have finished, were cancelled or missed their deadline,
        // oldest first.
        let now = Instant::now();
        let ended: Vec<_> = self.replies.extract_if(.., |_, reply| reply.has_ended(now)).collect();
        ended.iter().for_each(|(id, _)| self.workload.release(*id));
        let step = self.workload.schedule();
        *self.shared_stats.last.lock().unwrap_or_else(PoisonError::into_inner) =
            (self.workload.queue(), self.workload.stats());
        // Only after the statistics no longer count them: callers may read the statistics when
        // their request ends.
        ended.iter().for_each(|(_, reply)| reply.end_if_due(now));
        let Some(step) = step else { return false };
        let ran = match self.forward(&step) {
            Ok(outcome) => vec![(step, outcome)],
            Err(error) => self.retry(&step, error),
        };
        self.workload.finish(ran);
        true
    }

    /// Runs the requests of a failed step one by one, so that only those fail that fail again.
    fn retry(&mut self, step: &W::Step, error: Error) -> Vec<(W::Step, W::Outcome)> {
        let members = self.workload.members(step);
        if let [(only, _)] = &members[..] {
            self.fail(*only, error);
            return Vec::new();
        }
        let mut ran = Vec::new();
        for (id, step) in members {
            match self.forward(&step) {
                Ok(outcome) => ran.push((step, outcome)),
                Err(error) => self.fail(id, error),
            }
        }
        ran
    }

    fn forward(&mut self, step: &W::Step) -> Result<W::Outcome> {
        catch_panic(self.device, || self.workload.forward(step))
    }

    fn fail(&mut self, id: RequestId, error: Error) {
        if let Some(reply) = self.replies.remove(&id) {
            reply.fail(error);
        }
        self.workload.release(id);
    }
}
