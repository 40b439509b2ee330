//! Processes that Ruby forks.
//!
//! A fork copies memory but no threads, and no use of a GPU. The first call in a child replaces the
//! thread pools that the parent had started, so that the child does not wait for them forever, and
//! forgets the parent's GPUs.

use crate::array;
use crate::error::failure;
use magnus::{Error, Ruby};
use sconce_engine::Device;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// The process that last used the engine; 0: none yet.
static USER: AtomicU32 = AtomicU32::new(0);
/// Whether this process has opened a GPU.
static HAS_GPU: AtomicBool = AtomicBool::new(false);
/// Whether an ancestor had opened a GPU before it forked.
static LOST_GPU: AtomicBool = AtomicBool::new(false);

/// Called before anything that needs threads, with the Ruby VM lock held: only one thread can be
/// the first in a child.
pub(crate) fn check() {
    let this = std::process::id();
    let before = USER.swap(this, Relaxed);
    if before != this && before != 0 {
        if HAS_GPU.swap(false, Relaxed) {
            LOST_GPU.store(true, Relaxed);
        }
        array::forget_gpus();
        sconce_engine::after_fork();
    }
}

/// Fails for a GPU in the child of a process that had opened one; else records that this process
/// opens the device.
pub(crate) fn check_device(ruby: &Ruby, device: Device) -> Result<(), Error> {
    check();
    if !device.is_gpu() {
        return Ok(());
    }
    if lost_gpu() {
        return Err(failure(
            ruby,
            "this process was forked after a GPU was opened, so it cannot use a GPU: fork before the first use of \
             Sconce, or use device: \"cpu\"",
        ));
    }
    HAS_GPU.store(true, Relaxed);
    Ok(())
}

/// Whether a GPU was open when this process was forked, so that no GPU can be used.
pub(crate) fn lost_gpu() -> bool {
    check();
    LOST_GPU.load(Relaxed)
}
