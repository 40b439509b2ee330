//! The data folder and its lock.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The data folder. Another server cannot open it until this one is unlocked or its process ends.
pub(super) struct Folder {
    path: PathBuf,
    lock: Mutex<Option<File>>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Folder, String> {
        let failed = |e: std::io::Error| format!("--data-dir {}: {e}", path.display());
        make(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let lock = path.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Folder { path, lock: Mutex::new(Some(file)) }),
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                Err(format!("--data-dir {path}: another server uses this folder; stop it, or name another folder"))
            }
            Err(TryLockError::Error(e)) => Err(failed(e)),
        }
    }

    /// A folder in it, which is made if it is missing.
    pub(super) fn below(&self, name: &'static str) -> Result<PathBuf, String> {
        let path = self.path.join(name);
        make(&path).map_err(|e| format!("--data-dir: {}: {e}", path.display()))?;
        Ok(path)
    }

    pub(super) fn unlock(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Makes a folder that other users of the machine cannot read.
pub(crate) fn make(path: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a rename in a folder durable. Not every system can.
pub(crate) fn sync(dir: &Path) {
    #[cfg(unix)]
    if let Err(e) = File::open(dir).and_then(|dir| dir.sync_all()) {
        tracing::debug!(path = %dir.display(), "cannot synchronize: {e}");
    }
    #[cfg(not(unix))]
    let _ = dir;
}
