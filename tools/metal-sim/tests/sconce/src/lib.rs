//! Queries of the simulated Metal device, for tests.

use std::ffi::{CStr, CString, c_char};
// Linked for its features; see Cargo.toml.
use {block2 as _, objc2 as _};

unsafe extern "C" {
    fn metal_sim_dispatches(kernel: *const c_char) -> u64;
    fn metal_sim_warnings() -> *const c_char;
    fn metal_sim_fail_next(kernel: *const c_char);
    safe fn metal_sim_pipelines() -> u64;
    safe fn metal_sim_archived_pipelines() -> u64;
    safe fn metal_sim_allocated() -> u64;
    safe fn metal_sim_lent() -> u64;
}

/// Number of dispatches of this kernel by this process.
pub fn dispatches(kernel: &str) -> u64 {
    let kernel = CString::new(kernel).expect("a kernel's name");
    // SAFETY: a C string that outlives the call.
    unsafe { metal_sim_dispatches(kernel.as_ptr()) }
}

/// Number of dispatches of all kernels by this process.
pub fn all_dispatches() -> u64 {
    // SAFETY: a null name stands for all kernels.
    unsafe { metal_sim_dispatches(std::ptr::null()) }
}

/// The runtime's warnings about the kernels run so far, one line each, beginning with the kernel's
/// name.
pub fn warnings() -> String {
    // SAFETY: a C string, valid until the next call; copied at once.
    unsafe { CStr::from_ptr(metal_sim_warnings()) }.to_string_lossy().into_owned()
}

/// Makes the next command buffer with this kernel end in an error.
pub fn fail_next(kernel: &str) {
    let kernel = CString::new(kernel).expect("a kernel's name");
    // SAFETY: a C string that outlives the call.
    unsafe { metal_sim_fail_next(kernel.as_ptr()) }
}

/// Number of pipelines that this process has made.
pub fn pipelines() -> u64 {
    metal_sim_pipelines()
}

/// Number of pipelines that came from a binary archive.
pub fn archived_pipelines() -> u64 {
    metal_sim_archived_pipelines()
}

/// Bytes of all live buffers.
pub fn allocated() -> u64 {
    metal_sim_allocated()
}

/// Bytes of the live buffers over host memory, which are not copies.
pub fn lent() -> u64 {
    metal_sim_lent()
}
