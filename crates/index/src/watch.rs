//! Watching the roots for changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// they came to rest; at first with the roots, because changes before the watch are not seen. The
/// files of the index in `own` do not count.
pub(crate) fn watch(
    roots: &[PathBuf],
    own: &Path,
    (options, cancel): (WatchOptions, &AtomicBool),
    changed: &mut dyn FnMut(&[PathBuf]) -> Result<()>,
) -> Result<()> {
    let watched = roots.iter().map(|root| std::fs::canonicalize(root).map_err(Error::io(root)));
    let watched = watched.collect::<Result<Vec<PathBuf>>>()?;
    let own = own_files(own);
    let collected = Arc::new(Mutex::new(Collected::default()));
    let failed = |e: notify::Error| Error::Input(format!("changes cannot be watched: {e}"));
    // The watcher's thread sorts the events: they must not pile up during a long `changed`.
    let handler = {
        let (collected, watched) = (Arc::clone(&collected), watched.clone());
        move |event| lock(&collected).add_event(event, &watched, &own)
    };
    let mut watcher = notify::recommended_watcher(handler).map_err(failed)?;
    for root in &watched {
        // Editors replace a file by another one: only its folder sees that.
        let (folder, mode) = match root.parent() {
            Some(parent) if !root.is_dir() => (parent, RecursiveMode::NonRecursive),
            _ => (root.as_path(), RecursiveMode::Recursive),
        };
        watcher.watch(folder, mode).map_err(failed)?;
    }
    // What changed before the watcher saw it is found by one look at everything.
    lock(&collected).add(watched.iter().cloned());
    while !cancel.load(Ordering::Relaxed) {
        std::thread::sleep(POLL);
        let ready = {
            let mut collected = lock(&collected);
            collected.is_ready(&options).then(|| std::mem::take(&mut *collected))
        };
        if let Some(ready) = ready {
            let paths: Vec<PathBuf> = ready.paths.into_iter().collect();
            changed(&paths)?;
        }
    }
    Ok(())
}

fn lock(collected: &Mutex<Collected>) -> MutexGuard<'_, Collected> {
    collected.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn add_event(&mut self, event: notify::Result<Event>, watched: &[PathBuf], own: &[PathBuf]) {
        match event {
            // Events were lost.
            Err(_) => self.add(watched.iter().cloned()),
            Ok(event) if event.need_rescan() => self.add(watched.iter().cloned()),
            Ok(event) if is_change(&event) => {
                let counts = |path: &PathBuf| {
                    watched.iter().any(|root| path.starts_with(root))
                        && !own.iter().any(|own| path.starts_with(own))
                        && !path.iter().any(|part| part == ".git")
                };
                self.add(event.paths.into_iter().filter(counts));
            }
            Ok(_) => {}
        }
    }

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
