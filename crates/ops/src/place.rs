//! Where tensors are: an open device, or a phantom of one.

use crate::{Device, Result, ladder, launch};

/// An open device, or a phantom that stands for one.
///
/// A tensor in a phantom place has a shape, a dtype and a size, but no values. A plan runs a
/// model's own `forward` on phantoms: the same code, hence the same choices of rung and the same
/// buffers, before a byte of weights is read.
#[derive(Clone, Debug)]
pub struct Place(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Open(Device, candle_core::Device),
    Phantom(Device),
}

impl Place {
    /// Opens the device. If that fails it is an error; no other device takes its place.
    pub fn open(device: Device) -> Result<Place> {
        let candle = match device {
            Device::Cpu => candle_core::Device::Cpu,
            Device::Cuda(n) => launch::cuda::open(n)?,
            Device::Metal(n) => launch::metal::open(n)?,
        };
        Ok(Place(Kind::Open(device, candle)))
    }

    /// The CPU, which is always available.
    pub fn cpu() -> Place {
        Place(Kind::Open(Device::Cpu, candle_core::Device::Cpu))
    }

    /// A phantom of `device`, which need not exist in this machine.
    pub fn phantom(device: Device) -> Place {
        Place(Kind::Phantom(device))
    }

    /// The device of this place; that of a phantom need not exist.
    pub fn device(&self) -> Device {
        match self.0 {
            Kind::Open(device, _) | Kind::Phantom(device) => device,
        }
    }

    /// Whether tensors in this place have no values.
    pub fn is_phantom(&self) -> bool {
        matches!(self.0, Kind::Phantom(_))
    }

    /// If the device compiles kernels on this machine, writes those compiled so far to this folder,
    /// and from now on looks there before compiling. A failure only means that kernels are compiled
    /// again next time.
    pub fn keep_kernels(&self, folder: &std::path::Path) -> Result<()> {
        if self.compiles() { launch::metal::cache_kernels_in(folder) } else { Ok(()) }
    }

    /// Compiles every kernel of ours that `f` calls, and runs none (a dry run). Results of ops have
    /// a shape, but no values and no memory, so the largest shapes cost no more than the smallest.
    /// An op that would not run one of our kernels is an error. Does nothing if the device does not
    /// compile kernels on this machine.
    pub fn make_kernels<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        self.compiles().then(|| {
            let _dry = ladder::current().enter_in(ladder::Mode::Dry);
            f()
        })
    }

    /// Whether kernels are compiled on this machine, at their first call.
    fn compiles(&self) -> bool {
        matches!(self.0, Kind::Open(Device::Metal(_), _))
    }

    /// Waits until the device has run everything submitted to it. Time measured without this means
    /// nothing.
    pub fn synchronize(&self) -> Result<()> {
        if let Kind::Open(_, candle) = &self.0 {
            candle.synchronize()?;
        }
        Ok(())
    }
}
