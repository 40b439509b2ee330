//! Opening Apple GPUs and launching our kernels on them.
//!
//! Commands go through Candle's encoder, which orders them by what they read and write. Result
//! buffers come from our pool ([`buffers`]), and the pipelines are ours too ([`pipelines`]). A
//! kernel is launched as a [`Call`].

mod archive;
pub(crate) mod buffers;
mod call;
pub(crate) mod mapped;
mod pipelines;
mod view;

pub(crate) use super::strided::Lines;
pub(crate) use call::{Call, Grid};
pub(crate) use pipelines::{Kernel, cache_kernels_in};
pub(crate) use view::View;

use crate::{Device, DeviceInfo, Error, Result};
use candle_metal_kernels::metal::Device as Gpu;
use objc2::runtime::AnyClass;
use std::panic::catch_unwind;

/// The source of a folder's `kernel.metal`, after the prelude and the folder's other sources, by
/// name.
macro_rules! kernels {
    ($($before:literal),*) => {
        concat!(
            include_str!("../launch/metal/prelude.metal"),
            $(include_str!($before),)*
            include_str!("kernel.metal")
        )
    };
}
pub(crate) use kernels;

/// Number of Metal devices.
pub(crate) fn count() -> usize {
    catch_unwind(Gpu::all).map_or(0, |all| all.len())
}

pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
    info(n)?;
    // Candle uses residency sets without checking that the system has them, and panics if it has
    // not.
    if AnyClass::get(c"MTLResidencySetDescriptor").is_none() {
        return Err(unavailable(n, "macOS 15 or newer is needed; on this one run with `--device cpu`"));
    }
    catch_unwind(|| candle_core::Device::new_metal(n))
        .map_err(|_| unavailable(n, "Metal could not be set up; macOS 15 or newer is needed"))?
        .map_err(|e| unavailable(n, e.to_string()))
}

pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
    let all = catch_unwind(Gpu::all).map_err(|_| unavailable(n, "Metal does not answer"))?;
    let gpu = all
        .get(n)
        .ok_or_else(|| unavailable(n, format!("this machine has {} Metal devices; see `sconce devices`", all.len())))?;
    let total = gpu.recommended_max_working_set_size() as u64;
    Ok(DeviceInfo {
        device: Device::Metal(n),
        description: gpu.architecture_name(),
        free_bytes: total.saturating_sub(gpu.current_allocated_size() as u64),
        total_bytes: total,
    })
}

fn unavailable(n: usize, why: impl Into<String>) -> Error {
    Error::Device { device: Device::Metal(n), why: why.into() }
}
