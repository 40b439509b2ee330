//! Monotonic time. No code of this crate reads a wall clock: those of two hosts disagree.

use std::time::{Duration, Instant};

/// A clock that never goes back and that only its own process reads.
pub trait Clock: Send + Sync {
    /// Time since some moment of this process.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Monotonic {
        Monotonic(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
