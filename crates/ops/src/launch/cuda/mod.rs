//! Opening NVIDIA GPUs and launching our kernels on them.
//!
//! All work of an open device is on one stream, in the order of the calls. Result buffers come from
//! our pool ([`buffers`]). A kernel is launched as a [`Call`]; products go through cuBLASLt
//! ([`blas`]).

pub(crate) mod blas;
pub(crate) mod buffers;
mod call;
#[cfg(target_os = "linux")]
mod driver;
pub(crate) mod graph;
mod maps;
mod modules;
pub(crate) mod pinned;
pub(crate) mod rows;
mod tables;
pub(crate) mod uploads;
mod view;

pub(crate) use call::{Call, Grid};
pub(crate) use modules::{Binary, Kernel};
pub(crate) use view::View;

use crate::{Device, DeviceInfo, Error, Result};
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The binary that `build.rs` compiled from an op's `kernel.cu`; from another file, by the op's
/// name and the file's.
macro_rules! binary {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin"))
    };
}
pub(crate) use binary;

/// The oldest supported architecture: bf16 arithmetic and asynchronous copies start with it.
const OLDEST: (i32, i32) = (8, 0);

/// Number of CUDA devices.
pub(crate) fn count() -> usize {
    CudaContext::device_count().ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
    let context = context(n)?;
    let (major, minor) = context.compute_capability().map_err(|e| unavailable(n, describe(e)))?;
    if (major, minor) < OLDEST {
        let why = format!("its compute capability is {major}.{minor}, and 8.0 (Ampere) is the oldest supported");
        return Err(unavailable(n, why + "; run with `--device cpu`"));
    }
    let archs = env!("SCONCE_CUDA_ARCHS").split(' ').filter_map(|arch| arch.parse::<i32>().ok());
    if !archs.clone().any(|arch| arch / 10 == major && arch % 10 <= minor) {
        let archs: Vec<_> = archs.map(|arch| format!("{}.{}", arch / 10, arch % 10)).collect();
        let why = format!("this build is for compute capability {}, the card has {major}.{minor}", archs.join(", "));
        return Err(unavailable(n, format!("{why}; build with `CUDA_COMPUTE_CAP={major}{minor}`")));
    }
    let device = {
        let _locked = capture_lock();
        candle_core::Device::new_cuda_with_stream(n).map_err(|e| unavailable(n, e.to_string()))?
    };
    if let candle_core::Device::Cuda(cuda) = &device {
        // SAFETY: tensors of this device are made, read and freed on its one stream.
        #[allow(unsafe_code, reason = "a promise about streams")]
        unsafe {
            cuda.disable_event_tracking();
        }
    }
    Ok(device)
}

/// Held during a CUDA graph capture, and by calls that synchronize the whole GPU: during a capture
/// both would fail.
fn capture_lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
    let context = context(n)?;
    let query = || {
        let (free, total) = context.mem_get_info()?;
        let (major, minor) = context.compute_capability()?;
        Ok((context.name()?, free, total, major, minor))
    };
    let (name, free, total, major, minor) = query().map_err(|e| unavailable(n, describe(e)))?;
    Ok(DeviceInfo {
        device: Device::Cuda(n),
        description: format!("{name}, compute capability {major}.{minor}"),
        free_bytes: free as u64,
        total_bytes: total as u64,
    })
}

fn context(n: usize) -> Result<Arc<CudaContext>> {
    let count = CudaContext::device_count().map_err(|e| unavailable(n, describe(e)))?;
    if n >= usize::try_from(count).unwrap_or(0) {
        return Err(unavailable(n, format!("this machine has {count} CUDA devices; see `sconce devices`")));
    }
    CudaContext::new(n).map_err(|e| unavailable(n, describe(e)))
}

fn unavailable(n: usize, why: String) -> Error {
    Error::Device { device: Device::Cuda(n), why }
}

/// The driver's error, with advice where there is some.
fn describe(e: DriverError) -> String {
    let advice = match e.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "no memory is left on the card; try a smaller batch, context or --dtype",
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it; run with `--device cpu`"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the NVIDIA driver is older than the CUDA toolkit of this build; update the driver"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "this build has no code for the card; build with its CUDA_COMPUTE_CAP"
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "there is no NVIDIA driver (libcuda.so.1 is missing, or is the toolkit's stub); install it, start the container with \
             `--gpus all`, or run with `--device cpu`"
        }
        _ => return e.to_string(),
    };
    format!("{advice} ({:?})", e.0)
}

/// The error when the driver cannot allocate `bytes` bytes.
fn no_memory(bytes: usize, e: &candle_core::Error) -> Error {
    let what = format!(
        "cannot allocate {bytes} bytes on the card; try a smaller batch, a shorter context or a smaller --dtype ({e})"
    );
    Error::call("cuda", what)
}
