//! Devices: their names, and which of them this build and this machine have.

use crate::{Error, Result, launch};
use std::fmt;
use std::str::FromStr;

/// The name of a device. Opening it gives a [`crate::Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// The CPU, with the widest SIMD instruction set found at run time.
    Cpu,
    /// An NVIDIA GPU, by ordinal.
    Cuda(usize),
    /// An Apple GPU, by ordinal.
    Metal(usize),
}

/// Description and memory of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub device: Device,
    /// The vendor's name for it; on a CPU with the instruction set.
    pub description: String,
    /// Bytes that can still be allocated.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

impl Device {
    /// The fastest device that this build and this machine have, with its description; if that is
    /// the CPU, with the reasons against the others.
    pub fn best() -> (Device, String) {
        let mut why = Vec::new();
        for device in [Device::Cuda(0), Device::Metal(0)] {
            match device.info() {
                Ok(info) => return (device, info.description),
                Err(Error::Device { why: reason, .. }) => why.push(format!("{device}: {reason}")),
                Err(e) => why.push(format!("{device}: {e}")),
            }
        }
        (Device::Cpu, why.join("; "))
    }

    /// Every device that can be opened.
    pub fn all() -> Vec<DeviceInfo> {
        let cuda = (0..launch::cuda::count()).map(Device::Cuda);
        let metal = (0..launch::metal::count()).map(Device::Metal);
        [Device::Cpu].into_iter().chain(cuda).chain(metal).filter_map(|d| d.info().ok()).collect()
    }

    /// Queries the device for its name and memory. An error says why it cannot be used.
    pub fn info(self) -> Result<DeviceInfo> {
        match self {
            Device::Cpu => launch::cpu::info(),
            Device::Cuda(n) => launch::cuda::info(n),
            Device::Metal(n) => launch::metal::info(n),
        }
    }

    /// Whether products in bf16 are as fast as in f16. True of a GPU that is not in this machine.
    pub fn has_fast_bf16(self) -> bool {
        match self {
            Device::Metal(n) => launch::metal::has_fast_bf16(n),
            // The oldest supported card has tensor cores for bf16.
            Device::Cpu | Device::Cuda(_) => true,
        }
    }

    /// The name without the ordinal: `cpu`, `cuda`, `metal`.
    pub fn kind(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda(_) => "cuda",
            Device::Metal(_) => "metal",
        }
    }

    /// Whether this is a GPU, so that running an op on the host takes copies there and back.
    pub fn is_gpu(self) -> bool {
        self != Device::Cpu
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.pad("cpu"),
            Device::Cuda(n) | Device::Metal(n) => f.pad(&format!("{}:{n}", self.kind())),
        }
    }
}

impl FromStr for Device {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let (kind, ordinal) = s.split_once(':').unwrap_or((s, "0"));
        let number = ordinal.parse::<usize>();
        match (kind, number) {
            ("cpu", _) if s == "cpu" => Ok(Device::Cpu),
            ("cuda", Ok(n)) => Ok(Device::Cuda(n)),
            ("metal", Ok(n)) => Ok(Device::Metal(n)),
            _ => Err(Error::Parse(format!("unknown device `{s}`; one of auto, cpu, cuda, cuda:N, metal, metal:N"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip_and_invalid_names_are_refused() {
        for d in [Device::Cpu, Device::Cuda(0), Device::Cuda(3), Device::Metal(1)] {
            assert_eq!(d.to_string().parse::<Device>().unwrap(), d);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for bad in ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "metal:1:2"] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
    }
}
