//! Deadline, cancellation and timings of one request.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Deadline, cancellation and timings of one request. Clones share them.
///
/// Before each step of the model the executor ends requests that were cancelled or missed their
/// deadline, with [`Error::Cancelled`] or [`Error::DeadlineExceeded`].
#[derive(Clone, Debug)]
pub struct RequestContext(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    created: Instant,
    deadline: Option<Instant>,
    cancelled: AtomicBool,
    /// Nanoseconds.
    tokenization: AtomicU64,
    queue: AtomicU64,
    inference: AtomicU64,
}

/// The time that each phase of a request took so far, summed over inputs that ran in parallel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Tokenizing the texts.
    pub tokenization: Duration,
    /// Waiting in the queue for the first step.
    pub queue: Duration,
    /// From the first step to the last output.
    pub inference: Duration,
}

impl Default for RequestContext {
    /// A context without a deadline.
    fn default() -> RequestContext {
        RequestContext::new(None)
    }
}

impl RequestContext {
    /// A context with an optional deadline.
    pub fn new(deadline: Option<Instant>) -> RequestContext {
        RequestContext(Arc::new(Inner {
            created: Instant::now(),
            deadline,
            cancelled: AtomicBool::new(false),
            tokenization: AtomicU64::new(0),
            queue: AtomicU64::new(0),
            inference: AtomicU64::new(0),
        }))
    }

    /// Cancels the request.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Relaxed);
    }

    /// Whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Relaxed)
    }

    /// The deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// The time that each phase took so far.
    pub fn times(&self) -> Times {
        let of = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        Times { tokenization: of(&self.0.tokenization), queue: of(&self.0.queue), inference: of(&self.0.inference) }
    }

    /// The error that the request must end with now, if it was cancelled or missed its deadline.
    pub(crate) fn end_reason(&self, now: Instant) -> Option<Error> {
        if self.is_cancelled() {
            return Some(Error::Cancelled);
        }
        let deadline = self.0.deadline.filter(|deadline| now >= *deadline)?;
        Some(Error::DeadlineExceeded { allowed: deadline.saturating_duration_since(self.0.created) })
    }

    /// Fails if the request must end now.
    pub(crate) fn check(&self) -> Result<()> {
        self.end_reason(Instant::now()).map_or(Ok(()), Err)
    }

    /// Runs the tokenization `f` and records its time. Fails if the request must end before or
    /// after it.
    pub(crate) fn tokenizing<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let begun = Instant::now();
        let result = f();
        add(&self.0.tokenization, begun.elapsed());
        self.check()?;
        result
    }

    /// Adds time spent in the queue.
    pub(crate) fn add_queue_time(&self, time: Duration) {
        add(&self.0.queue, time);
    }

    /// Adds time spent in the model.
    pub(crate) fn add_inference_time(&self, time: Duration) {
        add(&self.0.inference, time);
    }
}

fn add(nanos: &AtomicU64, time: Duration) {
    nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_and_deadline_end_a_request_and_its_clones() {
        let now = Instant::now();
        let (without_deadline, with_deadline) =
            (RequestContext::default(), RequestContext::new(Some(now + Duration::from_secs(5))));
        let later = now + Duration::from_secs(3600);
        assert!(without_deadline.end_reason(later).is_none());
        assert!(with_deadline.end_reason(now + Duration::from_secs(4)).is_none());
        assert!(matches!(with_deadline.end_reason(now + Duration::from_secs(5)), Some(Error::DeadlineExceeded { .. })));
        without_deadline.clone().cancel();
        assert!(matches!(without_deadline.end_reason(now), Some(Error::Cancelled)));
        assert!(matches!(
            without_deadline.tokenizing(|| -> Result<()> { panic!("a cancelled request is tokenized") }),
            Err(Error::Cancelled)
        ));
    }

    #[test]
    fn queue_and_inference_times_accumulate() {
        let context = RequestContext::default();
        context.clone().add_queue_time(Duration::from_millis(3));
        context.add_queue_time(Duration::from_millis(4));
        context.add_inference_time(Duration::from_millis(5));
        let expected = Times {
            tokenization: Duration::ZERO,
            queue: Duration::from_millis(7),
            inference: Duration::from_millis(5),
        };
        assert_eq!(context.times(), expected);
    }
}
