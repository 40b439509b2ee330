//! What `doctor` last found on this machine, kept so that a kernel that is wrong here is not used here.

use crate::{Error, Result, source};
use sconce_ops::{DType, Device, Withdrawn};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The last verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The version whose kernels were judged; another version's verdict does not count.
    pub version: String,
    /// The devices they were judged on, by name and description; another machine's verdict does not count.
    pub devices: Vec<String>,
    /// Kernels that failed.
    pub withdrawn: Vec<Failed>,
}

/// A kernel that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The op.
    pub op: String,
    /// `cpu`, `cuda` or `metal`.
    pub device: String,
    /// The dtype it failed in.
    pub dtype: String,
}

/// Where the verdict is kept.
pub fn verdict_path(source: &source::Options) -> PathBuf {
    source.cache.join("doctor.json")
}

impl Verdict {
    /// A verdict on this machine.
    pub fn new(failed: impl IntoIterator<Item = (String, Device, DType)>) -> Verdict {
        let mut withdrawn: Vec<Failed> = Vec::new();
        for (op, device, dtype) in failed {
            let entry = Failed { op, device: device.kind().into(), dtype: dtype.to_string() };
            if !withdrawn.contains(&entry) {
                withdrawn.push(entry);
            }
        }
        Verdict { version: env!("CARGO_PKG_VERSION").into(), devices: here(), withdrawn }
    }

    /// The verdict kept at `path`, if it is there, whole, and about this version on this machine.
    pub fn read(path: &Path) -> Option<Verdict> {
        let text = std::fs::read_to_string(path).ok()?;
        let verdict: Verdict = serde_json::from_str(&text).ok()?;
        (verdict.version == env!("CARGO_PKG_VERSION") && verdict.devices == here()).then_some(verdict)
    }

    /// Keeps it, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let dir = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(dir)?;
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|e| Error::file(path, format!("the verdict cannot be kept: {e}")))
    }

    pub(crate) fn withdrawn(&self) -> Vec<Withdrawn> {
        let parse =
            |f: &Failed| Some(Withdrawn { op: f.op.clone(), kind: f.device.clone(), dtype: f.dtype.parse().ok()? });
        self.withdrawn.iter().filter_map(parse).collect()
    }
}

/// The devices of this machine. The thread count is left out: it changes with the environment, the kernels do not.
fn here() -> Vec<String> {
    let name = |info: sconce_ops::DeviceInfo| {
        let what = info.description.rsplit_once(", ").filter(|(_, last)| last.ends_with("threads"));
        format!("{}: {}", info.device, what.map_or(info.description.as_str(), |(what, _)| what))
    };
    Device::all().into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_here_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache/doctor.json");
        assert!(Verdict::read(&path).is_none());
        let failed = ("layer_norm".to_string(), Device::Cuda(0), DType::BF16);
        let verdict = Verdict::new([failed.clone(), failed]);
        verdict.write(&path).unwrap();
        let kept = Verdict::read(&path).unwrap().withdrawn();
        assert_eq!(kept, [Withdrawn { op: "layer_norm".into(), kind: "cuda".into(), dtype: DType::BF16 }]);

        Verdict { version: "0.0.0".into(), ..verdict.clone() }.write(&path).unwrap();
        assert!(Verdict::read(&path).is_none());
        Verdict { devices: vec!["cpu: another".into()], ..verdict }.write(&path).unwrap();
        assert!(Verdict::read(&path).is_none());
        std::fs::write(&path, "{").unwrap();
        assert!(Verdict::read(&path).is_none());
    }
}
