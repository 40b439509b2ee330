//! Watching the roots for changes.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::Result;

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
/// they came to rest. Paths that begin with `own`, the index's own files, do not count.
pub(crate) fn watch(
    roots: &[PathBuf],
    own: &std::path::Path,
    (options, cancel): (WatchOptions, &AtomicBool),
    changed: &mut dyn FnMut(&[PathBuf]) -> Result<()>,
) -> Result<()> {
    let _ = (roots, own, options, cancel, changed);
    todo!()
}
