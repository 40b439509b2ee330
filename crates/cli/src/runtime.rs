//! The threads of what serves.

use std::io;
use tokio::runtime::{Builder, Runtime};

/// Threads that wait for clients, and up to `blocking` that wait for models.
pub(crate) fn serving(blocking: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().max_blocking_threads(blocking).on_thread_start(brief).enable_all().build()
}

/// Makes this a thread that runs briefly and often: woken, it comes before one that computes, and has no more of the processor for
/// it. Without that whoever asks for our health waits until a matrix product has used up its slice, of several milliseconds.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "a call into the system")]
fn brief() {
    /// The shortest slice that there is.
    const SLICE_NS: u64 = 100_000;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        // SAFETY: takes numbers; of this thread.
        sched_nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the system reads `size` bytes. A system before Linux 6.12 does not know of slices, and changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Other systems look to that themselves.
#[cfg(not(target_os = "linux"))]
fn brief() {}
