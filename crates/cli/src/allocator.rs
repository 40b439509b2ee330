//! Keeps freed memory in the process.
//!
//! `sconce-ops` reuses large results of its CPU kernels (`buffer_pool.rs`). Composed forms, scratch
//! memory and loading still allocate large blocks. By default glibc returns such blocks to the
//! system at once and gets them back page by page, zeroed, which cost a fifth of the prefill time
//! when every op allocated its result. This is a decision for a whole process, so a library must
//! not make it.

/// Call before other threads start.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call into the C library")]
pub(crate) fn keep_freed() {
    unsafe extern "C" {
        fn mallopt(what: i32, value: i32) -> i32;
    }
    const TRIM_THRESHOLD: i32 = -1;
    const MMAP_THRESHOLD: i32 = -3;
    const ARENA_MAX: i32 = -8;
    for (what, value) in [(TRIM_THRESHOLD, i32::MAX), (MMAP_THRESHOLD, 1 << 30), (ARENA_MAX, 1)] {
        // SAFETY: takes two numbers; unknown parameters are ignored.
        unsafe { mallopt(what, value) };
    }
}

/// Other allocators need no tuning.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_freed() {}
