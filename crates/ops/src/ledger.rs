//! Counts the bytes that tensors hold, so that a memory plan can be exact and can be checked
//! against a run.

use crate::buffer_pool::BufferPool;
use crate::launch::{cuda, metal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bytes held now and at the worst moment. Each ladder has one; it counts real and phantom tensors
/// alike.
#[derive(Debug, Default)]
pub struct Ledger {
    live: AtomicU64,
    peak: AtomicU64,
    /// The buffer pool of the CPU.
    pub(crate) pool: BufferPool,
    /// The buffer pool of Metal, which also lists the buffers in use.
    #[cfg_attr(not(metal), allow(dead_code, reason = "for the device that this build lacks"))]
    pub(crate) metal: metal::buffers::Buffers,
    /// The buffer pool of CUDA.
    pub(crate) cuda: cuda::buffers::Buffers,
}

impl Ledger {
    /// Bytes held by live tensors.
    pub fn live(&self) -> u64 {
        self.live.load(Relaxed)
    }

    /// The most bytes ever held at once since the last [`Ledger::reset_peak`].
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Limits the buffer pools: idle buffers and all live tensors together hold no more than `most`
    /// bytes, the size in the memory plan.
    pub fn hold(&self, most: u64) {
        self.pool.set_limit(most);
    }

    /// Starts a new measurement of the peak at the current level.
    pub fn reset_peak(&self) {
        self.peak.store(self.live(), Relaxed);
    }

    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Arc<Lease> {
        let bytes = bytes as u64;
        let live = self.live.fetch_add(bytes, Relaxed).saturating_add(bytes);
        self.peak.fetch_max(live, Relaxed);
        Arc::new(Lease { bytes, ledger: self.clone(), buffer: None, is_shared: AtomicBool::new(false) })
    }

    /// The same for a result whose buffer returns to the pool when its last view is dropped.
    pub(crate) fn lend(self: &Arc<Self>, bytes: usize, buffer: candle_core::Tensor) -> Arc<Lease> {
        let mut lease = self.lease(bytes);
        // The lease is not shared yet.
        if let Some(lease) = Arc::get_mut(&mut lease) {
            lease.buffer = Some(buffer);
        }
        lease
    }
}

/// The entry of one buffer. All views of the buffer share it, and the last of them removes it.
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

    /// Marks the buffer as readable without a lease, so that the pool does not reuse it.
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
