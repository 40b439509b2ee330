//! Watching the roots for changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecursiveMode, Watcher};

use crate::error::{Error, Result};
use crate::store::own_files;

/// How often the caller's wish to end is looked at.
const POLL: Duration = Duration::from_millis(100);
/// More paths than these are not told apart.
const MAX_PATHS: usize = 10_000;

/// How changes are collected.
#[derive(Debug, Clone, Copy)]
pub struct WatchOptions {
    /// How long no further change may come before the collected ones are reported.
    pub quiet: Duration,
    /// How long changes are collected at most while further ones come.
    pub longest: Duration,
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions { quiet: Duration::from_millis(500), longest: Duration::from_secs(10) }
    }
}

/// Watches `roots` until `cancel` is set, and calls `changed` with the paths that changed, after
/// they came to rest. The files of the index in `own` do not count.
pub(crate) fn watch(
    roots: &[PathBuf],
    own: &Path,
    (options, cancel): (WatchOptions, &AtomicBool),
    changed: &mut dyn FnMut(&[PathBuf]) -> Result<()>,
) -> Result<()> {
    let watched = roots.iter().map(|root| std::fs::canonicalize(root).map_err(Error::io(root)));
    let watched = watched.collect::<Result<Vec<PathBuf>>>()?;
    let own = own_files(own);
    let (send, events) = channel();
    // The receiver lives as long as the watcher.
    let handler = move |event: notify::Result<Event>| drop(send.send(event));
    let failed = |e: notify::Error| Error::Input(format!("changes cannot be watched: {e}"));
    let mut watcher = notify::recommended_watcher(handler).map_err(failed)?;
    for root in &watched {
        // Editors replace a file by another one: only its folder sees that.
        let (folder, mode) = match root.parent() {
            Some(parent) if !root.is_dir() => (parent, RecursiveMode::NonRecursive),
            _ => (root.as_path(), RecursiveMode::Recursive),
        };
        watcher.watch(folder, mode).map_err(failed)?;
    }
    let mut collected = Collected::default();
    while !cancel.load(Ordering::Relaxed) {
        match events.recv_timeout(POLL) {
            Ok(Ok(event)) if event.need_rescan() => collected.add(watched.iter().cloned()),
            Ok(Ok(event)) if is_change(&event) => {
                let counts = |path: &PathBuf| {
                    watched.iter().any(|root| path.starts_with(root))
                        && !own.iter().any(|own| path.starts_with(own))
                        && !path.iter().any(|part| part == ".git")
                };
                collected.add(event.paths.into_iter().filter(counts));
            }
            // Events were lost.
            Ok(Err(_)) => collected.add(watched.iter().cloned()),
            Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Input("changes cannot be watched any longer: the watcher has ended".into()));
            }
        }
        if collected.is_ready(&options) {
            let paths: Vec<PathBuf> = std::mem::take(&mut collected).paths.into_iter().collect();
            changed(&paths)?;
        }
    }
    Ok(())
}

/// Reading a file changes nothing; indexing itself does it.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// Changes that were not reported yet.
#[derive(Default)]
struct Collected {
    paths: BTreeSet<PathBuf>,
    /// When the first and the last of them came.
    times: Option<(Instant, Instant)>,
}

impl Collected {
    fn add(&mut self, paths: impl Iterator<Item = PathBuf>) {
        let now = Instant::now();
        for path in paths {
            self.times = Some((self.times.map_or(now, |(first, _)| first), now));
            if self.paths.len() < MAX_PATHS {
                self.paths.insert(path);
            }
        }
    }

    fn is_ready(&self, options: &WatchOptions) -> bool {
        self.times.is_some_and(|(first, last)| last.elapsed() >= options.quiet || first.elapsed() >= options.longest)
    }
}
