//! Opening Apple GPUs and launching our kernels on them.

use crate::{Device, DeviceInfo, Error, Result};
use candle_core::{Layout, MetalDevice, MetalStorage, Storage};
use candle_metal_kernels::metal::{ComputePipeline, Device as Gpu};
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

/// How many there are.
pub(crate) fn count() -> usize {
    catch_unwind(Gpu::all).map_or(0, |all| all.len())
}

pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
    info(n)?;
    // Candle panics where residency sets are missing (macOS 14 and older).
    catch_unwind(|| candle_core::Device::new_metal(n))
        .map_err(|_| absent(n, "Metal could not be set up; macOS 15 or newer is needed"))?
        .map_err(|e| absent(n, e.to_string()))
}

pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
    let all = catch_unwind(Gpu::all).map_err(|_| absent(n, "Metal does not answer"))?;
    let gpu = all
        .get(n)
        .ok_or_else(|| absent(n, format!("this machine has {} Metal devices; see `sconce devices`", all.len())))?;
    let total = gpu.recommended_max_working_set_size() as u64;
    Ok(DeviceInfo {
        device: Device::Metal(n),
        description: gpu.architecture_name(),
        free_bytes: total.saturating_sub(gpu.current_allocated_size() as u64),
        total_bytes: total,
    })
}

fn absent(n: usize, why: impl Into<String>) -> Error {
    Error::Device { device: Device::Metal(n), why: why.into() }
}

/// A tensor's storage on a GPU.
pub(crate) fn storage(storage: &Storage) -> Result<&MetalStorage> {
    match storage {
        Storage::Metal(metal) => Ok(metal),
        _ => Err(Error::call("metal kernel", "the tensor is not on a Metal device")),
    }
}

/// Where in its buffer a tensor's elements start, in bytes.
pub(crate) fn offset(layout: &Layout, element: usize) -> usize {
    layout.start_offset() * element
}

/// The pipeline of one kernel in an op's `kernel.metal`. Compiling takes tens of milliseconds, so each is kept for as long as the process lives,
/// by device and function name.
pub(crate) fn pipeline(device: &MetalDevice, source: &'static str, function: &str) -> Result<ComputePipeline> {
    type Key = (candle_core::metal_backend::DeviceId, String);
    static PIPELINES: Mutex<Option<HashMap<Key, ComputePipeline>>> = Mutex::new(None);
    let mut kept = PIPELINES.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    let key = (device.id(), function.to_string());
    if let Some(pipeline) = kept.get(&key) {
        return Ok(pipeline.clone());
    }
    let fail = |e: candle_metal_kernels::MetalKernelError| Error::call("metal kernel", format!("{function}: {e}"));
    let gpu = device.metal_device();
    let library = gpu.new_library_with_source(source, None).map_err(fail)?;
    let entry = library.get_function(function, None).map_err(fail)?;
    let pipeline = gpu.new_compute_pipeline_state_with_function(&entry).map_err(fail)?;
    kept.insert(key, pipeline.clone());
    Ok(pipeline)
}
