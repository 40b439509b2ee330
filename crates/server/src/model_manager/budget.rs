//! Memory budget shared by all models.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes reserved so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicU64>);

/// A reserved share of the budget, released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
    /// Dropped after the bytes are released, so that a `Weak` of it shows when they are free.
    alive: Arc<()>,
}

impl Budget {
    /// Bytes reserved so far.
    pub(crate) fn reserved(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Reserves `bytes`, unless that would exceed `limit`.
    pub(crate) fn reserve(&self, bytes: u64, limit: u64) -> Option<Reservation> {
        let fits = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= limit);
        let reserved = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, fits);
        reserved.ok().map(|_| Reservation { budget: self.clone(), bytes, alive: Arc::new(()) })
    }
}

impl Reservation {
    /// Reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A `Weak` without owners once the share is released.
    pub(crate) fn released(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
