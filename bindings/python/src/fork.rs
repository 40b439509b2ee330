//! Forked processes. A `fork` copies the memory of a process but none of its threads: CPU thread
//! pools are started again, models are loaded again, and a GPU cannot be used.

use pyo3::prelude::*;
use sconce_engine::Device;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How often this process and its ancestors were forked since the module was loaded.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether this process has opened a GPU.
static HAS_GPU: AtomicBool = AtomicBool::new(false);
/// Whether an ancestor had opened a GPU before it forked.
static LOST_GPU: AtomicBool = AtomicBool::new(false);

/// Python calls this in the child (`os.register_at_fork`).
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Relaxed);
    if HAS_GPU.swap(false, Relaxed) {
        LOST_GPU.store(true, Relaxed);
    }
    sconce_engine::after_fork();
}

/// How often this process was forked. A model that was loaded at another count is of an ancestor.
#[pyfunction]
pub(crate) fn fork_count() -> u64 {
    FORKS.load(Relaxed)
}

/// Records that a model runs on this device.
pub(crate) fn opened(device: Device) {
    if device.is_gpu() {
        HAS_GPU.store(true, Relaxed);
    }
}

/// Whether a GPU was open when this process was forked, so that no GPU can be used.
pub(crate) fn lost_gpu() -> bool {
    LOST_GPU.load(Relaxed)
}
