//! Opening Apple GPUs and launching our kernels on them.
//!
//! Commands go through Candle's encoder, which orders them by what they read and write; buffers for results are ours
//! ([`buffers`]), and so are the pipelines ([`pipelines`]). A kernel is launched as a [`Call`].

mod archive;
pub(crate) mod buffers;
mod call;
pub(crate) mod mapped;
mod pipelines;
mod view;

pub(crate) use super::strided::Lines;
pub(crate) use call::{Call, Grid};
pub(crate) use pipelines::{Kernel, keep_in};
pub(crate) use view::View;

use crate::{Device, DeviceInfo, Error, Result};
use candle_metal_kernels::metal::Device as Gpu;
use objc2::runtime::AnyClass;
use std::panic::catch_unwind;

/// The text of a folder's `kernel.metal`. Before it stand the prelude and the folder's other texts, by name.
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

/// How many there are.
pub(crate) fn count() -> usize {
    catch_unwind(Gpu::all).map_or(0, |all| all.len())
}

pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
    info(n)?;
    // Candle asks for residency sets without asking whether the system has them, and panics where it has not.
    if AnyClass::get(c"MTLResidencySetDescriptor").is_none() {
        return Err(absent(n, "macOS 15 or newer is needed; on this one run with `--device cpu`"));
    }
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
