//! Writes to caches that other processes share: copying, locking, and atomic creation of files.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::disk;
use super::{HubError, Progress};

/// Which side of a copy failed.
#[derive(Debug)]
pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies all of `from` to `to` and passes every piece to `each`. Returns the number of bytes.
pub(super) fn copy_to(from: &mut dyn Read, to: &mut dyn Write, each: &mut dyn FnMut(&[u8])) -> Result<u64, CopyError> {
    let mut buffer = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        let piece = match from.read(&mut buffer) {
            Ok(0) => return to.flush().map(|()| total).map_err(CopyError::Write),
            Ok(n) => &buffer[..n],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        to.write_all(piece).map_err(CopyError::Write)?;
        each(piece);
        total += piece.len() as u64;
    }
}

/// Hashes a file up to its current length. Returns that length.
pub(super) fn digest(path: &Path, hash: &mut Sha256, each: &mut dyn FnMut(&[u8])) -> Result<u64, HubError> {
    let file = File::open(path).map_err(disk("read", path))?;
    let length = file.metadata().map_err(disk("read", path))?.len();
    let copied = copy_to(&mut file.take(length), &mut io::sink(), &mut |piece| {
        hash.update(piece);
        each(piece);
    });
    copied.map_err(|error| match error {
        CopyError::Read(error) | CopyError::Write(error) => disk("read", path)(error),
    })
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a small file atomically.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(disk("create", dir))?;
    let mut file = scratch_file(dir)?;
    file.write_all(bytes).map_err(disk("write", path))?;
    file.persist(path).map_err(|error| disk("write", path)(error.error))?;
    Ok(())
}

/// A temporary file that is deleted unless it is persisted. Opened by hand, because tempfile
/// creates files that only their owner can read, and a cache may be shared.
pub(super) fn scratch_file(dir: &Path) -> Result<tempfile::NamedTempFile, HubError> {
    tempfile::Builder::new()
        .suffix(".incomplete")
        .make_in(dir, |path| File::create_new(path))
        .map_err(disk("write in", dir))
}

/// A lock held during a download, so that a second process waits and then finds the file. Best
/// effort: some file systems cannot lock. It only saves work: files are renamed into place, so they
/// are complete in any case.
#[derive(Debug)]
#[must_use]
pub(super) struct Lock {
    _file: File,
    /// Whether the lock was acquired.
    pub(super) held: bool,
}

pub(super) fn lock(path: &Path, what: &str, progress: &dyn Progress) -> Result<Lock, HubError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(disk("create", dir))?;
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(disk("write", path))?;
    let held = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => {
            progress.note(&format!("another process is fetching {what}; waiting for it"));
            file.lock().is_ok()
        }
        Err(TryLockError::Error(_)) => false,
    };
    Ok(Lock { _file: file, held })
}
