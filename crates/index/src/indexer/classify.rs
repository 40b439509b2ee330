//! What a run has to do: the files of the walk against those of the index.

use std::collections::HashMap;
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
                if own.iter().any(|own| skipped.path.starts_with(own)) {
                    continue;
                }
                if matches!(skipped.reason, SkipReason::Unreadable(_) | SkipReason::IgnoreFile(_)) {
                    hidden.push(skipped.path.clone());
                }
                plan.skipped.push((skipped.path, skipped.reason.to_string()));
                continue;
            }
        };
        if own.iter().any(|own| found.path.starts_with(own)) {
            continue;
        }
        let text = |path: &Path| path.to_str().map(str::to_owned);
        let (Some(path), Some(relative), Some(root)) = (text(&found.path), text(&found.relative), text(&found.root))
        else {
            plan.skipped.push((found.path, "its name is not UTF-8; rename it".into()));
            continue;
        };
        match known.remove(&path) {
            Some(old) if is_unchanged(&old, &found, settings) => plan.unchanged += 1,
            old => plan.work.push(Work { found, path, relative, root, old }),
        }
        observe(plan.found());
    }
    plan.vanished = vanished(update, known, &hidden)?;
    Ok(plan)
}

fn is_unchanged(old: &FileRecord, found: &Found, settings: &str) -> bool {
    (old.size, old.modified_ns, old.settings.as_str()) == (found.size, found.modified_ns, settings)
}

/// The files below the roots that are left over, in the order of their paths.
fn vanished(update: &Update, left: HashMap<String, FileRecord>, hidden: &[PathBuf]) -> Result<Vec<FileRecord>> {
    let mut roots = Vec::new();
    for root in &update.roots {
        roots.push(std::path::absolute(root).map_err(Error::io(root))?);
        roots.push(std::fs::canonicalize(root).map_err(Error::io(root))?);
    }
    let is_below = |path: &Path, folders: &[PathBuf]| folders.iter().any(|folder| path.starts_with(folder));
    let has_vanished = |record: &FileRecord| {
        let path = Path::new(&record.path);
        is_below(path, &roots) && !is_below(path, hidden)
    };
    let mut vanished: Vec<FileRecord> = left.into_values().filter(has_vanished).collect();
    vanished.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(vanished)
}
