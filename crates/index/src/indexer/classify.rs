//! What a run has to do: the files of the walk against those of the index.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Update;
use crate::error::{Error, Result};
use crate::store::{FileRecord, Reader, own_files};
use crate::walk::{Found, SkipReason, Walk, WalkEntry};

/// A file to read.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) found: Found,
    /// The paths as texts.
    pub(super) path: String,
    pub(super) relative: String,
    pub(super) root: String,
    /// What the index has of it.
    pub(super) old: Option<FileRecord>,
}

/// What a run has to do.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) work: Vec<Work>,
    /// How many files are as they were.
    pub(super) unchanged: u64,
    pub(super) skipped: Vec<(PathBuf, String)>,
    /// Files of the index below the roots that the walk did not find.
    pub(super) vanished: Vec<FileRecord>,
    /// Files of roots that do not exist any more. Such a folder may have another name now, and its
    /// files be found there; or it is on a disk that comes back, so they are not removed.
    pub(super) left_behind: Vec<FileRecord>,
}

impl Plan {
    /// How many files the walk found.
    pub(super) fn found(&self) -> u64 {
        self.unchanged + self.work.len() as u64
    }
}

/// Walks the roots. `settings` is what chunks depend on; `own` is the database's file.
pub(super) fn plan(
    update: &Update,
    reader: &Reader<'_>,
    (settings, own): (&str, &Path),
    (cancel, observe): (&AtomicBool, &mut dyn FnMut(u64)),
) -> Result<Plan> {
    let mut known = reader.files()?;
    let mut plan = Plan::default();
    // What lies below cannot be seen at the moment; it has not vanished.
    let mut hidden: Vec<PathBuf> = Vec::new();
    let own = own_files(own);
    for entry in Walk::new(&update.roots, update.walk)? {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let found = match entry {
            WalkEntry::Found(found) => found,
            WalkEntry::Skipped(skipped) => {
                if is_own(&own, &skipped.path) {
                    continue;
                }
                if matches!(skipped.reason, SkipReason::Unreadable(_) | SkipReason::IgnoreFile(_)) {
                    hidden.push(skipped.path.clone());
                }
                plan.skipped.push((skipped.path, skipped.reason.to_string()));
                continue;
            }
        };
        if is_own(&own, &found.path) {
            continue;
        }
        let text = |path: &Path| path.to_str().map(str::to_owned);
        // `docs/` is the same root as `docs`.
        let root: PathBuf = found.root.components().collect();
        let (Some(path), Some(relative), Some(root)) = (text(&found.path), text(&found.relative), text(&root)) else {
            plan.skipped.push((found.path, "its name is not UTF-8; rename it".into()));
            continue;
        };
        let old = known.remove(&path);
        let (root, relative) = outer(old.as_ref(), &found.path, &found.root).unwrap_or((root, relative));
        match old {
            Some(old) if Path::new(&old.root) == Path::new(&root) && is_unchanged(&old, &found, settings) => {
                plan.unchanged += 1
            }
            old => plan.work.push(Work { found, path, relative, root, old }),
        }
        observe(plan.found());
    }
    (plan.vanished, plan.left_behind) = left_over(update, known, &hidden)?;
    Ok(plan)
}

/// Whether a path is one of the index's own files, also if the walk came to it by another way.
fn is_own(own: &[PathBuf], path: &Path) -> bool {
    let is_below = |path: &Path| own.iter().any(|own| path.starts_with(own));
    let has_name = |part: &OsStr| own.iter().any(|own| own.file_name() == Some(part));
    is_below(path) || (path.iter().any(has_name) && path.canonicalize().is_ok_and(|path| is_below(&path)))
}

/// The root of the index's record and the path below it, if it contains the root of this walk:
/// whichever root is indexed first or last, files belong to the outermost one.
fn outer(old: Option<&FileRecord>, path: &Path, root: &Path) -> Option<(String, String)> {
    let old = old?;
    if !root.starts_with(&old.root) || root == Path::new(&old.root) {
        return None;
    }
    let relative = path.strip_prefix(&old.root).ok()?.to_str()?;
    Some((old.root.clone(), relative.to_owned()))
}

fn is_unchanged(old: &FileRecord, found: &Found, settings: &str) -> bool {
    (old.size, old.modified_ns, old.settings.as_str()) == (found.size, found.modified_ns, settings)
}

/// What is left over of the index's files, in the order of paths: those below the roots, and those
/// whose roots do not exist any more.
fn left_over(
    update: &Update,
    left: HashMap<String, FileRecord>,
    hidden: &[PathBuf],
) -> Result<(Vec<FileRecord>, Vec<FileRecord>)> {
    let mut roots = Vec::new();
    for root in &update.roots {
        roots.push(std::path::absolute(root).map_err(Error::io(root))?);
        roots.push(std::fs::canonicalize(root).map_err(Error::io(root))?);
    }
    let is_below = |path: &Path, folders: &[PathBuf]| folders.iter().any(|folder| path.starts_with(folder));
    let mut is_gone: HashMap<String, bool> = HashMap::new();
    let (mut vanished, mut left_behind) = (Vec::new(), Vec::new());
    for record in left.into_values() {
        let path = Path::new(&record.path);
        if is_below(path, &roots) {
            if !is_below(path, hidden) {
                vanished.push(record);
            }
            continue;
        }
        let missing = || Path::new(&record.root).try_exists().is_ok_and(|exists| !exists);
        if *is_gone.entry(record.root.clone()).or_insert_with(missing) {
            left_behind.push(record);
        }
    }
    for records in [&mut vanished, &mut left_behind] {
        records.sort_by(|a: &FileRecord, b| a.path.cmp(&b.path));
    }
    Ok((vanished, left_behind))
}
