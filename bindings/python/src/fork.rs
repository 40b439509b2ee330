//! Forked processes. A `fork` copies the memory of a process but none of its threads: CPU thread
//! pools are started again, models are loaded again, and a GPU cannot be used.

use crate::error::exception;
use pyo3::prelude::*;
use sconce_engine::{Device, DeviceChoice};
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

/// Records that devices were tried: querying a GPU opens it too, whether or not a model runs there.
pub(crate) fn tried(choice: DeviceChoice) {
    let may_try = !matches!(choice, DeviceChoice::Only(Device::Cpu));
    if may_try && !HAS_GPU.load(Relaxed) {
        opened(Device::best().0);
    }
}

/// Fails if a GPU was open when this process was forked, unless the CPU was chosen.
pub(crate) fn check(py: Python<'_>, choice: DeviceChoice) -> PyResult<()> {
    if !LOST_GPU.load(Relaxed) || matches!(choice, DeviceChoice::Only(Device::Cpu)) {
        return Ok(());
    }
    let what = "this process was forked after a GPU was opened, so it cannot use a GPU: start processes with the start \
                method `spawn` (multiprocessing.set_start_method(\"spawn\")), or use device=\"cpu\"";
    Err(exception(py, "DeviceError", what))
}
