//! Counts the bytes that tensors hold, so that a memory plan can be exact and then be checked against what happened.

use crate::DType;
use crate::spare::{Buffers, Loan, Spare};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bytes held now and at the worst moment. One per ladder; real and phantom tensors are booked alike.
#[derive(Debug, Default)]
pub struct Ledger {
    live: AtomicU64,
    peak: AtomicU64,
    /// What results of CPU kernels are in. They are held whether a result is in them or not.
    pub(crate) spare: Spare,
}

impl Ledger {
    /// Bytes held by tensors that are alive, but for results in buffers that they share.
    pub fn live(&self) -> u64 {
        self.live.load(Relaxed)
    }

    /// The most bytes ever held at once since the last [`Ledger::reset_peak`]: by tensors, and by all buffers that results share.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed).saturating_add(self.spare.bytes())
    }

    /// Starts a new measurement from what is held now, and without buffers that results share.
    pub fn reset_peak(&self) {
        self.begin(None);
    }

    /// The buffers that results have shared so far.
    pub fn buffers(&self) -> Buffers {
        self.spare.sizes()
    }

    /// From now on results share these buffers, which a rehearsal has found, and there will be no others.
    pub fn reserve(&self, buffers: &Buffers) {
        self.begin(Some(buffers));
    }

    fn begin(&self, buffers: Option<&Buffers>) {
        let kept = self.spare.begin(buffers);
        self.live.fetch_add(kept, Relaxed);
        self.peak.store(self.live(), Relaxed);
    }

    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Arc<Lease> {
        let bytes = bytes as u64;
        let live = self.live.fetch_add(bytes, Relaxed).saturating_add(bytes);
        self.peak.fetch_max(live, Relaxed);
        Arc::new(Lease { bytes, ledger: self.clone(), loan: None, is_shared: AtomicBool::new(false) })
    }

    /// The same for what a CPU kernel has made: its buffer is booked already, if it was lent one.
    pub(crate) fn lease_made(self: &Arc<Self>, bytes: usize, result: &candle_core::Tensor) -> Arc<Lease> {
        self.lent(bytes, self.spare.loan(result))
    }

    /// The same for what one would make.
    pub(crate) fn lease_rehearsed(self: &Arc<Self>, bytes: usize, dtype: DType) -> Arc<Lease> {
        self.lent(bytes, self.spare.rehearse(dtype, bytes / dtype.size()))
    }

    fn lent(self: &Arc<Self>, bytes: usize, loan: Option<Loan>) -> Arc<Lease> {
        if loan.is_none() {
            return self.lease(bytes);
        }
        Arc::new(Lease { bytes: 0, ledger: self.clone(), loan, is_shared: AtomicBool::new(false) })
    }
}

/// One buffer's entry, shared by all views of it and struck out when the last one goes.
#[derive(Debug)]
pub(crate) struct Lease {
    bytes: u64,
    ledger: Arc<Ledger>,
    loan: Option<Loan>,
    is_shared: AtomicBool,
}

impl Lease {
    /// The buffer may have a reader that holds no lease of it, and is not to be used again.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            self.ledger.spare.end(loan, self.is_shared.load(Relaxed));
        }
        self.ledger.live.fetch_sub(self.bytes, Relaxed);
    }
}
