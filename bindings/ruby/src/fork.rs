//! Processes that Ruby forks.
//!
//! A fork copies memory but no threads. The first call in a child replaces the thread pools that the
//! parent had started, so that the child does not wait for them forever.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The process that last used the engine; 0: none yet.
static USER: AtomicU32 = AtomicU32::new(0);

/// Called before anything that needs threads, with the Ruby VM lock held: only one thread can be
/// the first in a child.
pub(crate) fn check() {
    let this = std::process::id();
    let before = USER.swap(this, Relaxed);
    if before != this && before != 0 {
        sconce_engine::after_fork();
    }
}
