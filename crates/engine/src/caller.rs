//! On whose behalf work is done: until when, whether anybody still waits for it, and how long each part of it took.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Somebody who waits for work to be done. Clones are the same caller.
///
/// Work of a caller who was cancelled, or whose time is over, ends before the next batch or step of the model, wherever it is, with
/// [`Error::Cancelled`] or [`Error::Late`].
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    made: Instant,
    deadline: Option<Instant>,
    cancelled: AtomicBool,
    /// Nanoseconds.
    tokenization: AtomicU64,
    queue: AtomicU64,
    inference: AtomicU64,
}

/// How long each part of a caller's work took so far. Parts of works that ran side by side are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Making tokens of texts.
    pub tokenization: Duration,
    /// Waiting until the first of the tokens were run.
    pub queue: Duration,
    /// From then on until the answer was there.
    pub inference: Duration,
}

impl Default for Caller {
    /// One who waits as long as it takes.
    fn default() -> Caller {
        Caller::new(None)
    }
}

impl Caller {
    /// One who waits until `deadline`.
    pub fn new(deadline: Option<Instant>) -> Caller {
        Caller(Arc::new(Inner {
            made: Instant::now(),
            deadline,
            cancelled: AtomicBool::new(false),
            tokenization: AtomicU64::new(0),
            queue: AtomicU64::new(0),
            inference: AtomicU64::new(0),
        }))
    }

    /// Says that nobody waits any more.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Relaxed);
    }

    /// Whether that was said.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Relaxed)
    }

    /// Until when it waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// How long each part took so far.
    pub fn times(&self) -> Times {
        let of = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Relaxed));
        Times { tokenization: of(&self.0.tokenization), queue: of(&self.0.queue), inference: of(&self.0.inference) }
    }

    /// Why there is no use in going on, if there is none.
    pub(crate) fn over(&self, now: Instant) -> Option<Error> {
        if self.is_cancelled() {
            return Some(Error::Cancelled);
        }
        let deadline = self.0.deadline.filter(|deadline| now >= *deadline)?;
        Some(Error::Late { allowed: deadline.saturating_duration_since(self.0.made) })
    }

    /// The same as a result, now.
    pub(crate) fn check(&self) -> Result<()> {
        self.over(Instant::now()).map_or(Ok(()), Err)
    }

    /// Runs `f`, which makes tokens, unless there is no use in it any more.
    pub(crate) fn tokenizing<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let begun = Instant::now();
        let made = f();
        add(&self.0.tokenization, begun.elapsed());
        self.check()?;
        made
    }

    pub(crate) fn waited(&self, time: Duration) {
        add(&self.0.queue, time);
    }

    pub(crate) fn ran(&self, time: Duration) {
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
    fn a_caller_is_over_when_cancelled_or_late_and_its_clones_are_the_same() {
        let now = Instant::now();
        let (patient, hasty) = (Caller::default(), Caller::new(Some(now + Duration::from_secs(5))));
        let later = now + Duration::from_secs(3600);
        assert!(patient.over(later).is_none());
        assert!(hasty.over(now + Duration::from_secs(4)).is_none());
        assert!(matches!(hasty.over(now + Duration::from_secs(5)), Some(Error::Late { .. })));
        patient.clone().cancel();
        assert!(matches!(patient.over(now), Some(Error::Cancelled)));
        assert!(matches!(
            patient.tokenizing(|| -> Result<()> { panic!("nobody waits for it") }),
            Err(Error::Cancelled)
        ));
    }

    #[test]
    fn times_add_up() {
        let caller = Caller::default();
        caller.clone().waited(Duration::from_millis(3));
        caller.waited(Duration::from_millis(4));
        caller.ran(Duration::from_millis(5));
        let expected = Times {
            tokenization: Duration::ZERO,
            queue: Duration::from_millis(7),
            inference: Duration::from_millis(5),
        };
        assert_eq!(caller.times(), expected);
    }
}
