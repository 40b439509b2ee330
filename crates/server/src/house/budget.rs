//! The memory of all models together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// What is spoken for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicU64>);

/// A part of it, given back when dropped.
#[derive(Debug)]
pub struct Room {
    budget: Budget,
    bytes: u64,
    /// Goes when the bytes have been given back.
    held: Arc<()>,
}

impl Budget {
    /// Bytes that are spoken for.
    pub(crate) fn taken(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Speaks for `bytes` more, if no more than `most` are then.
    pub(crate) fn take(&self, bytes: u64, most: u64) -> Option<Room> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
        let taken = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.ok().map(|_| Room { budget: self.clone(), bytes, held: Arc::new(()) })
    }
}

impl Room {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tells whether it has been given back.
    pub(crate) fn watched(&self) -> Weak<()> {
        Arc::downgrade(&self.held)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
