//! Where tensors live: an open device, or the phantom of one.

use crate::{Device, Result, ladder, launch};

/// An open device, or a phantom that stands for one.
///
/// A tensor in a phantom place has a shape, a dtype and a size, but no values. Running a model's own `forward` on phantoms is
/// how a plan is made: the same code, the same choices of rung, the same buffers, before a byte of weights is read.
#[derive(Clone, Debug)]
pub struct Place(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Open(Device, candle_core::Device),
    Phantom(Device),
}

impl Place {
    /// Opens the device. It is an error, never another device, if it cannot be had.
    pub fn open(device: Device) -> Result<Place> {
        let candle = match device {
            Device::Cpu => candle_core::Device::Cpu,
            Device::Cuda(n) => launch::cuda::open(n)?,
            Device::Metal(n) => launch::metal::open(n)?,
        };
        Ok(Place(Kind::Open(device, candle)))
    }

    /// The processor, which is always there.
    pub fn cpu() -> Place {
        Place(Kind::Open(Device::Cpu, candle_core::Device::Cpu))
    }

    /// A stand-in for `device`, which need not exist in this machine.
    pub fn phantom(device: Device) -> Place {
        Place(Kind::Phantom(device))
    }

    /// The device this place is, or stands for.
    pub fn device(&self) -> Device {
        match self.0 {
            Kind::Open(device, _) | Kind::Phantom(device) => device,
        }
    }

    /// Whether tensors here have no values.
    pub fn is_phantom(&self) -> bool {
        matches!(self.0, Kind::Phantom(_))
    }

    /// Keeps compiled kernels in this folder, where the device compiles them on this machine: now those that were made so far, and
    /// from now on they are looked for there first. Where this fails they are compiled again next time, and all is well otherwise.
    pub fn keep_kernels(&self, folder: &std::path::Path) -> Result<()> {
        if self.compiles() { launch::metal::keep_in(folder) } else { Ok(()) }
    }

    /// Makes every kernel of ours that `f` calls for, and runs none of them: what comes out of ops has a shape, but no values and no
    /// memory, so that the largest shapes cost no more than the smallest. An op that would not run a kernel of ours is an error.
    /// Where kernels are not compiled on this machine nothing is done.
    pub fn make_kernels<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        self.compiles().then(|| {
            let _dry = ladder::current().enter_in(ladder::Mode::Dry);
            f()
        })
    }

    /// Whether kernels are compiled on this machine, when they are first called for.
    fn compiles(&self) -> bool {
        matches!(self.0, Kind::Open(Device::Metal(_), _))
    }

    /// Waits until everything submitted to the device has run: a clock read before that measures nothing.
    pub fn synchronize(&self) -> Result<()> {
        if let Kind::Open(_, candle) = &self.0 {
            candle.synchronize()?;
        }
        Ok(())
    }
}
