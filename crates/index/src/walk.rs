//! The files below folders that are worth reading, in a fixed order, and what is skipped and why.

mod secrets;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use ignore::{DirEntry, WalkBuilder};

use crate::error::{Error, Result};
use crate::read::{FileRef, Format, ReadError, head_of};
use secrets::is_secret_folder;
pub use secrets::is_secret_name;

/// The largest ignore file that is read. The `ignore` crate reads whole lines into memory, and needs
/// some kilobytes for each pattern.
const MAX_IGNORE_FILE: u64 = 256 << 10;

/// What a walk leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkOptions {
    /// Also walk hidden files and folders.
    pub hidden: bool,
    /// Respect `.gitignore`, `.ignore` and git's global ignore file.
    pub ignore_files: bool,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self { hidden: false, ignore_files: true }
    }
}

/// A file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The absolute path.
    pub path: PathBuf,
    /// The root of the walk that contains the file.
    pub root: PathBuf,
    /// The path below the root; the file's name if the root is the file.
    pub relative: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// How to read the file.
    pub format: Format,
}

impl Found {
    /// Where a reader finds the file.
    pub fn file(&self) -> FileRef<'_> {
        file_ref(&self.root, &self.path)
    }
}

/// A file in a folder; a root that is a file is in the folder that holds it.
fn file_ref<'a>(root: &'a Path, path: &'a Path) -> FileRef<'a> {
    match path.strip_prefix(root) {
        Ok(relative) if !relative.as_os_str().is_empty() => FileRef { root, relative },
        _ => FileRef::of(path),
    }
}

/// A file or folder that is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The absolute path.
    pub path: PathBuf,
    /// Why.
    pub reason: SkipReason,
}

/// Why a file or folder is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// The name is one that keys and passwords have, or the content begins as a private key does.
    Secret,
    /// The content is not text, or no reader is known for it.
    Binary,
    /// A FIFO, socket or device.
    Special,
    /// A symbolic link to a place that no root contains.
    LinkOutside,
    /// A symbolic link to a file or folder that a root contains, where it is found itself.
    LinkInside,
    /// An ignore file in this folder cannot be used.
    IgnoreFile(String),
    /// The system refuses to read it.
    Unreadable(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret => f.write_str("looks like a secret (a key, password or token)"),
            Self::Binary => f.write_str("is not text, and there is no reader for it"),
            Self::Special => f.write_str("is a FIFO, socket or device"),
            Self::LinkOutside => f.write_str("is a symbolic link that leaves the indexed folders"),
            Self::LinkInside => f.write_str("is a symbolic link to a file that is found without it"),
            Self::IgnoreFile(why) => write!(f, "its ignore files cannot be used: {why}"),
            Self::Unreadable(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

/// What a walk comes upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalkEntry {
    /// A file to read.
    Found(Found),
    /// A file or folder that is not read.
    Skipped(Skipped),
}

/// A root as the user named it, and without symbolic links.
struct Root {
    path: PathBuf,
    canonical: PathBuf,
}

/// A walk over roots. Roots come in the order given, the files of a folder by name.
pub struct Walk {
    options: WalkOptions,
    /// The roots that are left, from the last to the first.
    waiting: Vec<Root>,
    current: Option<(Root, ignore::Walk)>,
    /// The roots without symbolic links.
    canonical: Vec<PathBuf>,
    /// The paths without symbolic links of what was found so far, if a root lies in another.
    seen: Option<HashSet<PathBuf>>,
    /// Folders that the filter of the `ignore` crate's walk refused.
    refused: Arc<Mutex<Vec<Skipped>>>,
}

impl Walk {
    /// A walk over files and folders. A root that does not exist is an error.
    pub fn new<P: AsRef<Path>>(roots: &[P], options: WalkOptions) -> Result<Self> {
        let (mut waiting, mut canonical) = (Vec::new(), Vec::new());
        for root in roots {
            let root = root.as_ref();
            let target = std::fs::canonicalize(root).map_err(Error::io(root))?;
            // A user who names a link means its target. Below the root, links are not followed.
            let is_link = std::fs::symlink_metadata(root).map_err(Error::io(root))?.is_symlink();
            let path = std::path::absolute(root).map_err(Error::io(root))?;
            canonical.push(target.clone());
            waiting.push(Root { path: if is_link { target.clone() } else { path }, canonical: target });
        }
        waiting.reverse();
        let overlaps = canonical
            .iter()
            .enumerate()
            .any(|(i, a)| canonical.iter().enumerate().any(|(j, b)| i != j && b.starts_with(a)));
        Ok(Self {
            options,
            waiting,
            current: None,
            canonical,
            seen: overlaps.then(HashSet::new),
            refused: Arc::default(),
        })
    }

    /// Starts to walk one root.
    fn enter(&self, root: &Path) -> std::result::Result<ignore::Walk, Skipped> {
        let ignore_files = self.options.ignore_files;
        // Those above the root count too.
        for dir in root.ancestors().filter(|_| ignore_files) {
            if let Err(why) = check_ignore_files(dir) {
                let reason = SkipReason::IgnoreFile(format!("in {}, {why}", dir.display()));
                return Err(Skipped { path: root.to_path_buf(), reason });
            }
        }
        let refused = Arc::clone(&self.refused);
        let filter = move |entry: &DirEntry| match refuse_folder(entry, ignore_files) {
            Refusal::Take => true,
            Refusal::Drop => false,
            Refusal::Report(reason) => {
                let skipped = Skipped { path: entry.path().to_path_buf(), reason };
                refused.lock().unwrap_or_else(PoisonError::into_inner).push(skipped);
                false
            }
        };
        Ok(WalkBuilder::new(root)
            .hidden(!self.options.hidden)
            .ignore(ignore_files)
            .git_ignore(ignore_files)
            .git_global(ignore_files)
            // `.git/info/exclude` lies behind files whose kind the `ignore` crate does not check.
            .git_exclude(false)
            .require_git(false)
            .parents(ignore_files)
            .follow_links(false)
            .sort_by_file_name(|a, b| a.cmp(b))
            .filter_entry(filter)
            .build())
    }

    /// What an entry of the `ignore` crate's walk is; `None` for a folder.
    fn judge(&self, root: &Path, entry: &DirEntry) -> Option<WalkEntry> {
        let path = entry.path();
        let skipped = |reason| Some(WalkEntry::Skipped(Skipped { path: path.to_path_buf(), reason }));
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => return skipped(SkipReason::Unreadable(error.to_string())),
        };
        if metadata.is_dir() {
            return None;
        }
        if metadata.is_symlink() {
            return skipped(self.link_reason(path));
        }
        if !metadata.is_file() {
            return skipped(SkipReason::Special);
        }
        if is_secret_name(&entry.file_name().to_string_lossy()) {
            return skipped(SkipReason::Secret);
        }
        let format = match Format::by_name(path) {
            Some(format) => Some(format),
            None if Format::is_binary_name(path) => None,
            None => match head_of(file_ref(root, path)) {
                Ok(head) => Format::of(path, &head),
                Err(ReadError::Secret) => return skipped(SkipReason::Secret),
                Err(ReadError::NotAFile) => return skipped(SkipReason::Special),
                Err(ReadError::Io(error)) => return skipped(SkipReason::Unreadable(error)),
                Err(error) => return skipped(SkipReason::Unreadable(error.to_string())),
            },
        };
        let Some(format) = format else { return skipped(SkipReason::Binary) };
        let relative = file_ref(root, path).relative.to_path_buf();
        Some(WalkEntry::Found(Found {
            path: path.to_path_buf(),
            root: root.to_path_buf(),
            relative,
            size: metadata.len(),
            modified_ns: modified_ns(&metadata),
            format,
        }))
    }

    fn link_reason(&self, path: &Path) -> SkipReason {
        match std::fs::canonicalize(path) {
            Ok(target) if self.canonical.iter().any(|root| target.starts_with(root)) => SkipReason::LinkInside,
            Ok(_) => SkipReason::LinkOutside,
            Err(error) => SkipReason::Unreadable(error.to_string()),
        }
    }

    /// False if an overlapping root had this path before.
    fn is_new(&mut self, path: &Path) -> bool {
        let Some(seen) = &mut self.seen else { return true };
        let below = self.current.as_ref().and_then(|(root, _)| Some((root, path.strip_prefix(&root.path).ok()?)));
        seen.insert(match below {
            Some((root, below)) => root.canonical.join(below),
            None => path.to_path_buf(),
        })
    }
}

impl Iterator for Walk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        loop {
            let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(skipped) = refused {
                if self.is_new(&skipped.path) {
                    return Some(WalkEntry::Skipped(skipped));
                }
                continue;
            }
            let Some((root, walk)) = &mut self.current else {
                let root = self.waiting.pop()?;
                match self.enter(&root.path) {
                    Ok(walk) => self.current = Some((root, walk)),
                    Err(skipped) => return Some(WalkEntry::Skipped(skipped)),
                }
                continue;
            };
            let root = root.path.clone();
            let Some(entry) = walk.next() else {
                self.current = None;
                continue;
            };
            let found = match entry {
                Ok(entry) => self.judge(&root, &entry),
                Err(error) => Some(WalkEntry::Skipped(unreadable(&root, &error))),
            };
            if let Some(found) = found
                && self.is_new(found.path())
            {
                return Some(found);
            }
        }
    }
}

impl WalkEntry {
    /// The file's or folder's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Found(found) => &found.path,
            Self::Skipped(skipped) => &skipped.path,
        }
    }
}

/// What the filter decides about an entry before the walk descends.
enum Refusal {
    Take,
    Drop,
    Report(SkipReason),
}

fn refuse_folder(entry: &DirEntry, ignore_files: bool) -> Refusal {
    if !entry.file_type().is_some_and(|kind| kind.is_dir()) {
        return Refusal::Take;
    }
    match entry.file_name().to_str() {
        // The store of a version control system is no document, even where hidden files are.
        Some(".git" | ".hg" | ".svn" | ".jj") => return Refusal::Drop,
        Some(name) if is_secret_folder(name) => return Refusal::Report(SkipReason::Secret),
        _ => {}
    }
    match check_ignore_files(entry.path()) {
        Err(why) if ignore_files => Refusal::Report(SkipReason::IgnoreFile(why)),
        _ => Refusal::Take,
    }
}

/// The `ignore` crate opens these names whatever they are: a FIFO would block it for ever, and a
/// line of a gigabyte would fill the memory.
fn check_ignore_files(dir: &Path) -> std::result::Result<(), String> {
    for name in [".gitignore", ".ignore"] {
        let Ok(metadata) = std::fs::metadata(dir.join(name)) else { continue };
        if metadata.is_dir() {
            continue;
        }
        if !metadata.is_file() {
            return Err(format!("{name} is not a regular file"));
        }
        if metadata.len() > MAX_IGNORE_FILE {
            return Err(format!("{name} is larger than {MAX_IGNORE_FILE} bytes"));
        }
    }
    Ok(())
}

fn unreadable(root: &Path, error: &ignore::Error) -> Skipped {
    let path = path_of(error).unwrap_or(root).to_path_buf();
    Skipped { path, reason: SkipReason::Unreadable(error.to_string()) }
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => path_of(err),
        _ => None,
    }
}

fn modified_ns(metadata: &std::fs::Metadata) -> i64 {
    let clamp = |ns: u128| i64::try_from(ns).unwrap_or(i64::MAX);
    match metadata.modified().map(|time| time.duration_since(UNIX_EPOCH)) {
        Ok(Ok(since)) => clamp(since.as_nanos()),
        Ok(Err(before)) => -clamp(before.duration().as_nanos()),
        Err(_) => 0,
    }
}
