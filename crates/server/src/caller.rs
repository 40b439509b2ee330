//! On whose behalf work is done: until when, and whether anybody still waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Who waits for an answer. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    deadline: Option<Instant>,
    gone: AtomicBool,
}

/// How long each part took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Texts to tokens.
    pub tokenization: Duration,
    /// Waiting for a place in a batch.
    pub queue: Duration,
    /// The model's work.
    pub inference: Duration,
}

impl Caller {
    /// Who waits until `deadline`.
    pub fn new(deadline: Option<Instant>) -> Caller {
        Caller(Arc::new(Inner { deadline, gone: AtomicBool::new(false) }))
    }

    /// Nobody waits any more.
    pub fn cancel(&self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }

    /// Whether nobody waits any more.
    pub fn is_cancelled(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed) || self.0.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// How long each part took.
    pub fn times(&self) -> Times {
        Times::default()
    }
}
