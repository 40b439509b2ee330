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
use objc2_metal::{MTLDevice, MTLGPUFamily};
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
    catch_unwind(|| candle_core::Device::new_metal(n))
        .map_err(|_| unavailable(n, "Metal could not be set up; macOS 15 or newer is needed"))?
        .map_err(|e| unavailable(n, e.to_string()))
}

/// Checks everything that opening needs, so that `auto` chooses only a device that opens.
pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
    let gpu = gpu(n)?;
    // Candle uses residency sets without checking that the system has them, and panics if it has
    // not.
    if AnyClass::get(c"MTLResidencySetDescriptor").is_none() {
        return Err(unavailable(
            n,
            "macOS 15 or newer is needed (residency sets); on this one run with `--device cpu`",
        ));
    }
    // The first family with matrices of a SIMD group, which our kernels multiply with.
    if !gpu.as_ref().supportsFamily(MTLGPUFamily::Apple7) {
        let why = format!(
            "{} is not a GPU of Apple silicon (family Apple 7: M1 or newer), which the kernels need; run with `--device cpu`",
            gpu.architecture_name()
        );
        return Err(unavailable(n, why));
    }
    let total = gpu.recommended_max_working_set_size() as u64;
    Ok(DeviceInfo {
        device: Device::Metal(n),
        description: gpu.architecture_name(),
        free_bytes: total.saturating_sub(gpu.current_allocated_size() as u64),
        total_bytes: total,
    })
}

/// Whether the GPU has bf16 arithmetic: M1 and M2 emulate it. True of a GPU that is not in this
/// machine.
pub(crate) fn has_fast_bf16(n: usize) -> bool {
    gpu(n).map_or(true, |gpu| gpu.as_ref().supportsFamily(MTLGPUFamily::Apple9))
}

fn gpu(n: usize) -> Result<Gpu> {
    let all = catch_unwind(Gpu::all).map_err(|_| unavailable(n, "Metal does not answer"))?;
    let why = format!("this machine has {} Metal devices; see `sconce devices`", all.len());
    all.into_iter().nth(n).ok_or_else(|| unavailable(n, why))
}

fn unavailable(n: usize, why: impl Into<String>) -> Error {
    Error::Device { device: Device::Metal(n), why: why.into() }
}
