//! Memory that a pass has used stays with the process for the next one.
//!
//! Every op makes its result anew. The C library gives such large pieces back to the system at once, and gets them again page
//! by page, zeroed: a fifth of the time of reading a prompt. The command is the process, so it may decide that; a library may not.

/// Before other threads are there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call into the C library")]
pub(crate) fn keep() {
    unsafe extern "C" {
        fn mallopt(what: i32, value: i32) -> i32;
    }
    const TRIM_THRESHOLD: i32 = -1;
    const MMAP_THRESHOLD: i32 = -3;
    const ARENA_MAX: i32 = -8;
    for (what, value) in [(TRIM_THRESHOLD, i32::MAX), (MMAP_THRESHOLD, 1 << 30), (ARENA_MAX, 1)] {
        // SAFETY: takes two numbers; what it does not understand it leaves as it is.
        unsafe { mallopt(what, value) };
    }
}

/// Other allocators keep what they have.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep() {}
