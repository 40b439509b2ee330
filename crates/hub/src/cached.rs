//! Models in the caches: listing and removing them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::error::disk;
use super::hub::folder_name;
use super::{Choice, Files, HubError, Options, Reference, gguf, model_files, resolve, wheel};

/// A repository or wheel in a cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CachedModel {
    /// How to name it: `org/name`, `org/name@COMMIT` beside other commits, or `pip:NAME==VERSION`.
    pub name: String,
    /// Its files, or what is missing from them.
    pub files: Result<Files, String>,
    /// Bytes on disk. Commits of one repository may share some.
    pub bytes: u64,
    /// When a file of it was last read, as far as the file system records it.
    pub last_used: Option<SystemTime>,
}

/// Every model in the caches, the one used last first.
pub fn cached_models(options: &Options) -> Result<Vec<CachedModel>, HubError> {
    let offline = Options { offline: true, ..options.clone() };
    let mut models = Vec::new();
    for folder in folders(&options.hub_cache)? {
        let Some(repo) = file_name(&folder).strip_prefix("models--").map(|name| name.replace("--", "/")) else {
            continue;
        };
        let commits = folders(&folder.join("snapshots"))?;
        for commit in &commits {
            let is_only = commits.len() == 1 && folder.join("refs/main").exists();
            let name = if is_only { repo.clone() } else { format!("{repo}@{}", file_name(commit)) };
            models.push(CachedModel::new(name, &pointers(commit)?, &offline));
        }
    }
    for folder in folders(&options.cache.join("wheels"))? {
        // A normalized name has no dash.
        if let Some((package, version)) = file_name(&folder).split_once('-')
            && !package.starts_with('.')
        {
            let model = CachedModel::new(format!("pip:{package}=={version}"), &pointers(&folder)?, &offline);
            // Wheels without a model hold test data.
            models.extend(model.files.is_ok().then_some(model));
        }
    }
    models.sort_by_key(|model| std::cmp::Reverse(model.last_used));
    Ok(models)
}

impl CachedModel {
    fn new(name: String, files: &[PathBuf], offline: &Options) -> CachedModel {
        let found = name.parse().and_then(|reference| resolve(&reference, offline, &()));
        let metadata: Vec<_> = files.iter().filter_map(|file| fs::metadata(file).ok()).collect();
        CachedModel {
            name,
            files: found.map_err(|error| error.to_string()),
            bytes: metadata.iter().map(fs::Metadata::len).sum(),
            last_used: metadata.iter().filter_map(|file| file.accessed().ok()).max(),
        }
    }
}

/// What removing a model would delete.
#[derive(Debug)]
pub struct Removal {
    /// The model, for messages.
    pub what: String,
    /// Files and folders to delete.
    paths: Vec<PathBuf>,
    /// Bytes that become free.
    pub bytes: u64,
    /// Bytes that stay because other revisions share them.
    pub kept_bytes: u64,
}

impl Removal {
    /// Plans the removal of what `reference` names in the caches.
    pub fn plan(reference: &Reference, options: &Options) -> Result<Removal, HubError> {
        match reference {
            Reference::Dir(path) | Reference::Gguf(path) => Err(HubError::NotCached {
                what: path.display().to_string(),
                why: "it is your own file or folder, not in a cache; delete it yourself".into(),
            }),
            Reference::Hub { repo, revision, choice } => {
                remove_from_hub(repo, revision.as_deref(), choice, options)?.ok_or_else(|| not_cached(repo, options))
            }
            Reference::Wheel { package, version, .. } => remove_wheel(package, version.as_deref(), options)
                .ok_or_else(|| not_cached(&format!("pip:{package}"), options)),
            Reference::Short(short) => {
                let choice = short.gguf.map_or(Choice::Usual, |file| Choice::File(file.to_owned()));
                let from_hub = remove_from_hub(short.repo, None, &choice, options)?;
                let wheel = short.wheel.and_then(|(package, version)| remove_wheel(package, Some(version), options));
                from_hub.into_iter().chain(wheel).reduce(Removal::and).ok_or_else(|| not_cached(short.name, options))
            }
        }
    }

    fn and(mut self, other: Removal) -> Removal {
        self.what = format!("{} and {}", self.what, other.what);
        self.paths.extend(other.paths);
        self.bytes += other.bytes;
        self.kept_bytes += other.kept_bytes;
        self
    }

    /// Deletes the files.
    pub fn run(self) -> Result<(), HubError> {
        for path in self.paths {
            // A link is deleted, never followed.
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
            let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(disk("delete", &path)(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn not_cached(what: &str, options: &Options) -> HubError {
    let why = format!("it is not in the caches {} and {}", options.hub_cache.display(), options.cache.display());
    HubError::NotCached { what: what.to_owned(), why }
}

/// The files of a repository that only this revision, or this GGUF, needs.
fn remove_from_hub(
    repo: &str,
    revision: Option<&str>,
    choice: &Choice,
    options: &Options,
) -> Result<Option<Removal>, HubError> {
    let folder = options.hub_cache.join(folder_name(repo));
    let commit = revision.map(|revision| {
        let text = fs::read_to_string(folder.join("refs").join(revision));
        text.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned())
    });
    let mut what = commit.as_ref().map_or_else(|| repo.to_owned(), |commit| format!("{repo}@{commit}"));
    let (mut gone, mut kept, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for snapshot in folders(&folder.join("snapshots"))? {
        let all = pointers(&snapshot)?;
        if commit.as_ref().is_some_and(|commit| file_name(&snapshot) != *commit) {
            kept.extend(all);
            continue;
        }
        let parts = match choice {
            Choice::Usual => None,
            choice => gguf::choose(repo, revision.unwrap_or("main"), &gguf::list(&snapshot)?, choice)?,
        };
        match parts {
            Some(parts) => {
                what = format!("{} of {what}", parts.join(", "));
                let (theirs, others) =
                    all.into_iter().partition(|file| parts.iter().any(|part| snapshot.join(part) == *file));
                gone.extend::<Vec<_>>(theirs);
                kept.extend::<Vec<_>>(others);
            }
            None => {
                gone.extend(all);
                paths.push(folder.join(".no_exist").join(file_name(&snapshot)));
                paths.extend(refs_to(&folder, file_name(&snapshot).as_str()));
                paths.push(snapshot);
            }
        }
    }
    if gone.is_empty() && paths.is_empty() {
        return Ok(None);
    }
    let blob = |file: &PathBuf| {
        fs::canonicalize(file).ok().filter(|blob| blob.starts_with(fs::canonicalize(&folder).unwrap_or_default()))
    };
    let shared: BTreeSet<PathBuf> = kept.iter().filter_map(blob).collect();
    let blobs: BTreeSet<PathBuf> = gone.iter().filter_map(blob).collect();
    let size = |files: &mut dyn Iterator<Item = &PathBuf>| -> u64 {
        files.filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
    };
    let (bytes, kept_bytes) = (size(&mut blobs.difference(&shared)), size(&mut blobs.intersection(&shared)));
    if kept.is_empty() {
        let name = folder_name(repo);
        paths = vec![folder, options.hub_cache.join(".locks").join(&name), options.cache.join("listings").join(&name)];
    } else {
        paths.extend(gone);
        paths.extend(blobs.difference(&shared).cloned());
    }
    Ok(Some(Removal { what, paths, bytes, kept_bytes }))
}

/// The branches and tags that point to a commit.
fn refs_to(folder: &Path, commit: &str) -> Vec<PathBuf> {
    let points = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.trim() == commit);
    pointers(&folder.join("refs")).unwrap_or_default().into_iter().filter(points).collect()
}

fn remove_wheel(package: &str, version: Option<&str>, options: &Options) -> Option<Removal> {
    let dir = wheel::unpacked(package, version, options)?;
    let bytes = pointers(&dir).ok()?.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
    let what = format!("the wheel {}", file_name(&dir));
    Some(Removal { what, paths: vec![dir], bytes, kept_bytes: 0 })
}

/// The folders in `dir`; none if it does not exist.
fn folders(dir: &Path) -> Result<Vec<PathBuf>, HubError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(disk("list", dir))?,
    };
    let mut all: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort_unstable();
    Ok(all)
}

/// The files and links below `dir`. Links to folders are not followed.
fn pointers(dir: &Path) -> Result<Vec<PathBuf>, HubError> {
    let (mut all, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).map_err(disk("list", &dir))?.flatten() {
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => left.push(entry.path()),
                false => all.push(entry.path()),
            }
        }
    }
    Ok(all)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Files {
    /// How the weights are stored: `GGUF`, `safetensors`, `torch` or, if there are no others, `ONNX`.
    pub fn format(&self) -> &'static str {
        let has = |name: &str| self.dir.join(name).exists() || self.dir.join(format!("{name}.index.json")).exists();
        match &self.gguf {
            Some(_) => "GGUF",
            None if has("model.safetensors") => "safetensors",
            None if has("pytorch_model.bin") => "torch",
            None if model_files::has_onnx(&self.dir) => "ONNX",
            None => "safetensors",
        }
    }
}
