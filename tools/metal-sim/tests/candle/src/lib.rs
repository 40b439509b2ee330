//! What a test needs to run tensor ops on the simulated Metal device.

pub mod scale;

use std::ffi::{CStr, CString, c_char};

use candle_core::{DType, Device, Result, Tensor};
// Linked for its features; see Cargo.toml.
use {block2 as _, objc2 as _};

unsafe extern "C" {
    fn metal_sim_dispatches(kernel: *const c_char) -> u64;
    fn metal_sim_warnings() -> *const c_char;
}

/// The simulated device.
pub fn metal() -> Device {
    Device::new_metal(0).expect("the simulated Metal device")
}

/// How often this kernel has been dispatched by this process.
pub fn dispatches(kernel: &str) -> u64 {
    let kernel = CString::new(kernel).expect("a kernel's name");
    // SAFETY: a C string that outlives the call.
    unsafe { metal_sim_dispatches(kernel.as_ptr()) }
}

/// What the runtime suspects of the kernels run so far, one line each, beginning with the kernel's name.
pub fn warnings() -> String {
    // SAFETY: a C string, valid until the next call; copied at once.
    unsafe { CStr::from_ptr(metal_sim_warnings()) }.to_string_lossy().into_owned()
}

/// Asserts that two tensors agree: the largest difference, relative to the largest value expected, is within `tolerance`.
pub fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) -> Result<()> {
    assert!(got.device().is_metal(), "{what}: the result is not on the Metal device");
    let flat = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (flat(got)?, flat(want)?);
    let scale = want.iter().fold(f64::MIN_POSITIVE, |scale, v| scale.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let error = (g - w).abs() / scale;
        assert!(error <= tolerance, "{what}: element {i} is {g}, expected {w} (error {error:.1e})");
    }
    Ok(())
}
