//! The stored verdict of `sconce doctor` on this machine. Kernels that failed here are not used.

use crate::error::{Error, Result};
use sconce_ops::{DType, Device, DeviceInfo, Rung, Withdrawn};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The last verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The version whose kernels were checked; a verdict of another version does not count.
    version: String,
    /// One entry per checked device.
    devices: Vec<DeviceVerdict>,
}

/// A device, and the kernels that failed on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceVerdict {
    device: String,
    /// The device's description: a verdict of another machine does not count.
    description: String,
    withdrawn: Vec<FailedKernel>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FailedKernel {
    op: String,
    dtype: String,
    rung: String,
}

/// The file of the verdict.
pub fn verdict_path(source: &sconce_hub::Options) -> PathBuf {
    source.cache.join("doctor.json")
}

impl Verdict {
    /// A verdict on these devices, with the kernels that failed on each.
    pub fn new<'a>(devices: impl IntoIterator<Item = (&'a DeviceInfo, Vec<(String, DType, Rung)>)>) -> Verdict {
        let failed = |(op, dtype, rung): (String, DType, Rung)| FailedKernel {
            op,
            dtype: dtype.to_string(),
            rung: rung.to_string(),
        };
        let checked = |(info, all): (&DeviceInfo, Vec<_>)| DeviceVerdict {
            device: info.device.to_string(),
            description: stable_description(info),
            withdrawn: all.into_iter().map(failed).collect(),
        };
        Verdict { version: env!("CARGO_PKG_VERSION").into(), devices: devices.into_iter().map(checked).collect() }
    }

    /// Adds the entries of `old` for devices and ops that were not checked this time.
    pub fn over(mut self, old: Verdict, checked: impl Fn(&str) -> bool) -> Verdict {
        for old_entry in old.devices {
            match self.devices.iter_mut().find(|entry| entry.device == old_entry.device) {
                Some(entry) if entry.description == old_entry.description => {
                    entry.withdrawn.extend(old_entry.withdrawn.into_iter().filter(|f| !checked(&f.op)));
                }
                // This name now belongs to another device.
                Some(_) => {}
                None => self.devices.push(old_entry),
            }
        }
        self
    }

    /// The verdict stored at `path`, if the file exists and is of this version. A file that cannot
    /// be read is an error, because it may withdraw a kernel.
    pub fn read(path: &Path) -> Result<Option<Verdict>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unreadable(path, e)),
        };
        let verdict: Verdict = serde_json::from_str(&text).map_err(|e| unreadable(path, e))?;
        Ok((verdict.version == env!("CARGO_PKG_VERSION")).then_some(verdict))
    }

    /// Writes the verdict atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let dir = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(dir)?;
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|e| Error::file(path, format!("doctor's verdict cannot be written: {e}")))
    }

    /// The kernels that failed on exactly this device; `None` if it was not checked.
    pub fn failed(&self, device: &DeviceInfo) -> Option<Vec<Withdrawn>> {
        let name = device.device.to_string();
        let is_this = |j: &&DeviceVerdict| j.device == name && j.description == stable_description(device);
        let parse = |f: &FailedKernel| {
            let (dtype, rung) = (f.dtype.parse().ok()?, f.rung.parse().ok()?);
            Some(Withdrawn { op: f.op.clone(), kind: device.device.kind().into(), dtype, rung })
        };
        self.devices.iter().find(is_this).map(|j| j.withdrawn.iter().filter_map(parse).collect())
    }

    /// The kernels that are not used on this device, because they failed.
    pub(crate) fn withdrawn(&self, device: &DeviceInfo) -> Vec<Withdrawn> {
        self.failed(device).unwrap_or_default()
    }
}

fn unreadable(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::file(path, format!("doctor's verdict cannot be read ({e}); run `sconce doctor` again, or delete it"))
}

/// The description without the thread count, which depends on the environment; the kernels do not.
fn stable_description(info: &DeviceInfo) -> String {
    match info.description.rsplit_once(", ") {
        Some((what, threads)) if info.device == Device::Cpu && threads.trim_end_matches('s').ends_with(" thread") => {
            what.into()
        }
        _ => info.description.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_applies_only_to_its_device_and_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache/doctor.json");
        assert_eq!(Verdict::read(&path).unwrap(), None);
        let gpu = |description: &str| DeviceInfo {
            device: Device::Cuda(0),
            description: description.into(),
            free_bytes: 0,
            total_bytes: 0,
        };
        let here = gpu("a GPU");
        let verdict = Verdict::new([(&here, vec![("layer_norm".to_string(), DType::BF16, Rung::Fused)])]);
        verdict.write(&path).unwrap();
        let stored = Verdict::read(&path).unwrap().unwrap();
        let failed = Withdrawn { op: "layer_norm".into(), kind: "cuda".into(), dtype: DType::BF16, rung: Rung::Fused };
        assert_eq!(stored.withdrawn(&here), [failed]);
        assert!(stored.withdrawn(&gpu("another GPU")).is_empty());
        assert_eq!((stored.failed(&here).map(|f| f.len()), stored.failed(&gpu("another GPU"))), (Some(1), None));
        assert!(stored.withdrawn(&Device::Cpu.info().unwrap()).is_empty());

        // Checking one op or another device leaves the other entries as they were.
        let again = |info: &DeviceInfo, op: &str| {
            Verdict::new([(info, vec![])]).over(stored.clone(), |checked| checked == op).withdrawn(&here).len()
        };
        assert_eq!(
            (again(&here, "layer_norm"), again(&here, "linear"), again(&gpu("another GPU"), "linear")),
            (0, 1, 0)
        );
        assert_eq!(again(&Device::Cpu.info().unwrap(), "layer_norm"), 1);

        Verdict { version: "0.0.0".into(), ..verdict }.write(&path).unwrap();
        assert_eq!(Verdict::read(&path).unwrap(), None);
        std::fs::write(&path, "{").unwrap();
        assert!(Verdict::read(&path).unwrap_err().to_string().contains("sconce doctor"));
    }
}
