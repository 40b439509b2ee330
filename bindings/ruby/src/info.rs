//! Devices, threads and the features of this build.

use crate::convert::device;
use crate::error::failure;
use magnus::{Error, Ruby};
use sconce_engine::Device;

/// The names of the devices that can be used.
pub(crate) fn devices() -> Vec<String> {
    Device::all().into_iter().map(|info| info.device.to_string()).collect()
}

pub(crate) fn best_device() -> String {
    Device::best().0.to_string()
}

/// Fails if there is no such device.
pub(crate) fn check_device(ruby: &Ruby, name: String) -> Result<String, Error> {
    let info = device(ruby, &name)?.info().map_err(|e| failure(ruby, e))?;
    Ok(info.device.to_string())
}

pub(crate) fn threads() -> usize {
    sconce_ops::threads::count()
}

/// Whether the extension was built with a device's feature.
pub(crate) fn has_feature(name: String) -> bool {
    match &*name {
        "cuda" => cfg!(feature = "cuda"),
        "metal" => cfg!(any(feature = "metal", target_os = "macos")),
        _ => false,
    }
}
