//! Opening NVIDIA GPUs and launching our kernels on them.
#![allow(unsafe_code, reason = "kernel launches")]

use crate::{Device, DeviceInfo, Error, Result};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaSlice, CudaView, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{Layout, Storage};

pub(crate) use candle_core::cuda_backend::cudarc::driver::{LaunchArgs, LaunchConfig, PushKernelArg};

/// How many there are.
pub(crate) fn count() -> usize {
    CudaContext::device_count().ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
    context(n)?;
    Ok(candle_core::Device::new_cuda(n)?)
}

pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
    let context = context(n)?;
    let ask = || {
        let (free, total) = context.mem_get_info()?;
        let (major, minor) = context.compute_capability()?;
        Ok((context.name()?, free, total, major, minor))
    };
    let (name, free, total, major, minor) =
        ask().map_err(|e: candle_core::cuda_backend::cudarc::driver::DriverError| absent(n, e.to_string()))?;
    Ok(DeviceInfo {
        device: Device::Cuda(n),
        description: format!("{name}, compute capability {major}.{minor}"),
        free_bytes: free as u64,
        total_bytes: total as u64,
    })
}

fn context(n: usize) -> Result<std::sync::Arc<CudaContext>> {
    let count = CudaContext::device_count().map_err(|e| absent(n, format!("the CUDA driver does not answer: {e}")))?;
    if n >= usize::try_from(count).unwrap_or(0) {
        return Err(absent(n, format!("this machine has {count} CUDA devices; see `sconce devices`")));
    }
    CudaContext::new(n).map_err(|e| absent(n, e.to_string()))
}

fn absent(n: usize, why: String) -> Error {
    Error::Device { device: Device::Cuda(n), why }
}

/// A tensor's storage on a GPU.
pub(crate) fn storage(storage: &Storage) -> Result<&CudaStorage> {
    match storage {
        Storage::Cuda(cuda) => Ok(cuda),
        _ => Err(Error::call("cuda kernel", "the tensor is not on a CUDA device")),
    }
}

/// The elements of a contiguous tensor.
pub(crate) fn view<'a, T: CudaDType + DeviceRepr>(
    storage: &'a CudaStorage,
    layout: &Layout,
) -> Result<CudaView<'a, T>> {
    let all: &CudaSlice<T> = storage.as_cuda_slice::<T>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(all.slice(start..end)),
        None => Err(Error::call("cuda kernel", "the tensor is a view with gaps")),
    }
}

/// Runs a kernel with its arguments pushed.
///
/// # Safety
/// The arguments must be those the kernel declares, and its reads and writes must stay inside them.
pub(crate) unsafe fn launch(mut args: LaunchArgs<'_>, config: LaunchConfig) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { args.launch(config) }.map_err(|e| Error::call("cuda kernel", e.to_string()))?;
    Ok(())
}
