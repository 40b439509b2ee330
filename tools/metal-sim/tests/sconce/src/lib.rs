//! What a test can ask the simulated Metal device.

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

/// How often this kernel has been dispatched by this process.
pub fn dispatches(kernel: &str) -> u64 {
    let kernel = CString::new(kernel).expect("a kernel's name");
    // SAFETY: a C string that outlives the call.
    unsafe { metal_sim_dispatches(kernel.as_ptr()) }
}

/// How many dispatches of any kernel this process has made.
pub fn all_dispatches() -> u64 {
    // SAFETY: no name stands for all of them.
    unsafe { metal_sim_dispatches(std::ptr::null()) }
}

/// What the runtime suspects of the kernels run so far, one line each, beginning with the kernel's name.
pub fn warnings() -> String {
    // SAFETY: a C string, valid until the next call; copied at once.
    unsafe { CStr::from_ptr(metal_sim_warnings()) }.to_string_lossy().into_owned()
}

/// Makes the next command buffer that runs this kernel end in an error instead.
pub fn fail_next(kernel: &str) {
    let kernel = CString::new(kernel).expect("a kernel's name");
    // SAFETY: a C string that outlives the call.
    unsafe { metal_sim_fail_next(kernel.as_ptr()) }
}

/// How many pipelines this process has made.
pub fn pipelines() -> u64 {
    metal_sim_pipelines()
}

/// How many of them a binary archive had.
pub fn archived_pipelines() -> u64 {
    metal_sim_archived_pipelines()
}

/// Bytes of the buffers that live now.
pub fn allocated() -> u64 {
    metal_sim_allocated()
}

/// Bytes of those among them that lie on the host's own memory, and are no copy of it.
pub fn lent() -> u64 {
    metal_sim_lent()
}
