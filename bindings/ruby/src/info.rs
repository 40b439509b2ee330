//! Devices, threads and the features of this build.

use crate::convert::{Text, device};
use crate::error::failure;
use crate::{fork, gvl};
use magnus::{Error, Ruby};
use sconce_engine::{Device, RequestContext};

/// Asks the drivers, which may take long, without the Ruby VM lock.
fn ask<T: Send + 'static>(ruby: &Ruby, question: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    gvl::run(ruby, &RequestContext::default(), move || Ok::<_, String>(question()))
}

/// The names of the devices that can be used.
pub(crate) fn devices(ruby: &Ruby) -> Result<Vec<String>, Error> {
    if fork::lost_gpu() {
        return Ok(vec![Device::Cpu.to_string()]);
    }
    let all: Vec<Device> = ask(ruby, || Device::all().into_iter().map(|info| info.device).collect())?;
    for device in &all {
        // Its driver cannot be used after a fork.
        fork::check_device(ruby, *device)?;
    }
    Ok(all.iter().map(Device::to_string).collect())
}

/// Fails after a fork that lost a GPU: the CPU does not take its place unasked.
pub(crate) fn best_device(ruby: &Ruby) -> Result<String, Error> {
    if fork::lost_gpu() {
        fork::check_device(ruby, Device::Cuda(0))?;
    }
    let best = ask(ruby, || Device::best().0)?;
    fork::check_device(ruby, best)?;
    Ok(best.to_string())
}

/// Fails if there is no such device.
pub(crate) fn check_device(ruby: &Ruby, name: Text) -> Result<String, Error> {
    let device = device(ruby, &name)?;
    fork::check_device(ruby, device)?;
    let info = ask(ruby, move || device.info())?.map_err(|e| failure(ruby, e))?;
    Ok(info.device.to_string())
}

pub(crate) fn threads(_: &Ruby) -> Result<usize, Error> {
    Ok(sconce_ops::threads::count())
}

/// Whether the extension was built with a device's feature.
pub(crate) fn has_feature(_: &Ruby, name: Text) -> Result<bool, Error> {
    Ok(match &*name {
        "cuda" => cfg!(feature = "cuda"),
        "metal" => cfg!(any(feature = "metal", target_os = "macos")),
        _ => false,
    })
}

/// Panics, so that the specs can see what a bug of ours does.
pub(crate) fn panic(ruby: &Ruby, elsewhere: bool) -> Result<(), Error> {
    match elsewhere {
        true => ask(ruby, || panic!("on another thread")),
        false => panic!("on this thread"),
    }
}
