//! Counts the bytes that tensors hold, so that a memory plan can be exact and then be checked against what happened.

use crate::buffer_pool::BufferPool;
use crate::launch::{cuda, metal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bytes held now and at the worst moment. One per ladder; real and phantom tensors are booked alike.
#[derive(Debug, Default)]
pub struct Ledger {
    live: AtomicU64,
    peak: AtomicU64,
    /// Buffers of tensors that were alive.
    pub(crate) spare: BufferPool,
    /// The same on Metal, those of living tensors among them.
    #[cfg_attr(not(metal), allow(dead_code, reason = "for the device that this build lacks"))]
    pub(crate) metal: metal::buffers::Buffers,
    /// The same with CUDA.
    pub(crate) cuda: cuda::buffers::Buffers,
}

impl Ledger {
    /// Bytes held by tensors that are alive.
    pub fn live(&self) -> u64 {
        self.live.load(Relaxed)
    }

    /// The most bytes ever held at once since the last [`Ledger::reset_peak`].
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// From now on buffers are kept for results to come as long as all of them and all tensors together are no more than so many
    /// bytes: what was planned.
    pub fn hold(&self, most: u64) {
        self.spare.hold(most);
    }

    /// Starts a new measurement from what is held now.
    pub fn reset_peak(&self) {
        self.peak.store(self.live(), Relaxed);
    }

    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Arc<Lease> {
        let bytes = bytes as u64;
        let live = self.live.fetch_add(bytes, Relaxed).saturating_add(bytes);
        self.peak.fetch_max(live, Relaxed);
        Arc::new(Lease { bytes, ledger: self.clone(), buffer: None, is_shared: AtomicBool::new(false) })
    }

    /// The same for a result whose buffer is spare once its last view is gone.
    pub(crate) fn lend(self: &Arc<Self>, bytes: usize, buffer: candle_core::Tensor) -> Arc<Lease> {
        let mut lease = self.lease(bytes);
        // Nobody else has it yet.
        if let Some(lease) = Arc::get_mut(&mut lease) {
            lease.buffer = Some(buffer);
        }
        lease
    }
}

/// One buffer's entry, shared by all views of it and struck out when the last one goes.
#[derive(Debug)]
pub(crate) struct Lease {
    bytes: u64,
    ledger: Arc<Ledger>,
    buffer: Option<candle_core::Tensor>,
    is_shared: AtomicBool,
}

impl Lease {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The buffer may have a reader that holds no lease of it, and is not to be used again.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.ledger.reclaim(&buffer, self.is_shared.load(Relaxed));
        }
        self.ledger.live.fetch_sub(self.bytes, Relaxed);
    }
}
