//! What the files of a model say about it: format, architecture, size.

use crate::model_manager::ModelSummary;
use sconce_api::ollama::ModelDetails;
use sconce_engine::hub::{Files, Reference, resolve};
use sconce_engine::{ModelDescription, Size, Task};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most models whose facts are kept.
const MAX_CACHED: usize = 256;
/// Most files of a model that are counted; a folder that a user serves may hold anything.
const MAX_FILES: usize = 4_096;
/// Endings of the files that belong to a model.
const ENDINGS: [&str; 7] = ["gguf", "safetensors", "bin", "onnx", "json", "model", "jinja"];

/// Facts about a model's files.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) details: ModelDetails,
    /// The task that the files are made for.
    pub(super) task: Option<Task>,
    pub(super) parameters: Option<u64>,
    /// Bytes of the files.
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    /// Changes when the files change.
    pub(super) digest: String,
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            details: ModelDetails::default(),
            task: None,
            parameters: None,
            size: 0,
            modified: UNIX_EPOCH,
            digest: hex(Sha256::new()),
        }
    }
}

/// Facts of models by the place of their files, because clients ask often and headers are long. Facts
/// of files that changed are read again.
#[derive(Debug, Default)]
pub(crate) struct FactsCache(Mutex<HashMap<PathBuf, Arc<Facts>>>);

impl FactsCache {
    /// The facts of a model. Reads files; `None` if they are not on this machine yet.
    pub(super) fn of(&self, summary: &ModelSummary) -> Option<Arc<Facts>> {
        let files = match &summary.served {
            Some(served) => served.model.loaded().files().clone(),
            None => {
                let mut options = summary.spec.load.hub_options();
                options.offline = true;
                resolve(&summary.spec.reference.parse::<Reference>().ok()?, &options, &()).ok()?
            }
        };
        let fingerprint = Fingerprint::of(&files);
        let root = files.root().to_owned();
        if let Some(known) = self.lock().get(&root).filter(|known| known.digest == fingerprint.digest) {
            return Some(known.clone());
        }
        let facts = Arc::new(fingerprint.facts(&files));
        let mut all = self.lock();
        if all.len() >= MAX_CACHED {
            all.clear();
        }
        all.insert(root, facts.clone());
        Some(facts)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Arc<Facts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sizes and times of a model's files.
struct Fingerprint {
    size: u64,
    modified: SystemTime,
    digest: String,
}

impl Fingerprint {
    fn of(files: &Files) -> Fingerprint {
        let mut paths = match &files.gguf {
            Some(parts) => parts.clone(),
            None => model_files(&files.dir),
        };
        paths.sort_unstable();
        let (mut size, mut modified, mut hash) = (0u64, UNIX_EPOCH, Sha256::new());
        for path in paths {
            // Follows the links of the hub's cache.
            let Ok(file) = fs::metadata(&path) else { continue };
            let changed = file.modified().unwrap_or(UNIX_EPOCH);
            size = size.saturating_add(file.len());
            modified = modified.max(changed);
            let name = path.strip_prefix(&files.dir).unwrap_or(&path);
            hash.update(name.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash.update(file.len().to_le_bytes());
            hash.update(changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_le_bytes());
        }
        Fingerprint { size, modified, digest: hex(hash) }
    }

    fn facts(self, files: &Files) -> Facts {
        let Fingerprint { size, modified, digest } = self;
        let about = ModelDescription::read(files).ok();
        let parameters = Size::of(files).ok().map(|size| size.parameters).filter(|n| *n > 0);
        let family = about.as_ref().map(|about| about.architecture.clone()).unwrap_or_default();
        let details = ModelDetails {
            parent_model: String::new(),
            format: files.format().to_lowercase(),
            families: if family.is_empty() { Vec::new() } else { vec![family.clone()] },
            family,
            parameter_size: parameters.map(parameter_size).unwrap_or_default(),
            quantization_level: about.as_ref().and_then(|about| about.stored.clone()).unwrap_or_default(),
        };
        Facts { details, task: about.map(|about| about.task), parameters, size, modified, digest }
    }
}

/// The files of a model in its folder and the folders of its modules.
fn model_files(dir: &Path) -> Vec<PathBuf> {
    let is_model_file = |path: &PathBuf| path.extension().is_some_and(|e| ENDINGS.iter().any(|known| e == *known));
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries(dir).take(MAX_FILES).partition(|path| path.is_dir());
    let inner = folders.iter().flat_map(|folder| entries(folder).filter(|path| path.is_file()));
    files.into_iter().chain(inner).take(MAX_FILES).filter(is_model_file).collect()
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `134.5M`, `7.2B`.
fn parameter_size(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        1_000_000_000.. => format!("{:.1}B", n / 1e9),
        1_000_000.. => format!("{:.1}M", n / 1e6),
        1_000.. => format!("{:.1}K", n / 1e3),
        _ => parameters.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_of_the_model_files_and_their_digest_changes_with_them() {
        let dir = sconce_testkit::materialize("st-prompts");
        let files = Files::local(dir.path());
        let before = Fingerprint::of(&files);
        assert!(before.size > 1000 && before.modified > UNIX_EPOCH && before.digest.len() == 64);
        assert_eq!(Fingerprint::of(&files).digest, before.digest);
        fs::write(dir.path().join("notes.txt"), "not the model's").unwrap();
        assert_eq!(Fingerprint::of(&files).digest, before.digest);
        let facts = Fingerprint::of(&files).facts(&files);
        assert_eq!((facts.details.format.as_str(), facts.task), ("safetensors", Some(Task::Embed)));
        assert!(!facts.details.family.is_empty() && facts.parameters > Some(100));
        let config = dir.path().join("config.json");
        fs::write(&config, fs::read_to_string(&config).unwrap() + " ").unwrap();
        assert_ne!(Fingerprint::of(&files).digest, before.digest);
    }

    #[test]
    fn parameters_have_a_unit() {
        assert_eq!([134_515_008, 7_240_000_000, 22_000, 12].map(parameter_size), ["134.5M", "7.2B", "22.0K", "12"]);
    }
}
