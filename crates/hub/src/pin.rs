//! Pinned hashes. A file is hashed once; a stamp in our cache records its size and modification
//! time, so that a large model is not hashed at every start.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::error::disk;
use super::store::{digest, hex, write_atomic};
use super::{HubError, Options, Progress, Span};

/// Checks that each file of `pins` in `dir` has its sha256.
pub(super) fn check(
    dir: &Path,
    pins: &[(&str, &str)],
    options: &Options,
    progress: &dyn Progress,
) -> Result<(), HubError> {
    for (name, expected) in pins {
        let file = dir.join(name);
        // The target of the link, so that a replaced link is not mistaken for the old file.
        let real = file.canonicalize().map_err(disk("read", &file))?;
        let metadata = fs::metadata(&real).map_err(disk("read", &real))?;
        let age = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let line = format!("{} {} {expected} {}\n", metadata.len(), age.as_nanos(), real.display());
        let mut key = Sha256::new();
        key.update(real.as_os_str().as_encoded_bytes());
        let stamp = options.cache.join("verified").join(&hex(key)[..32]);
        if fs::read_to_string(&stamp).is_ok_and(|text| text == line) {
            continue;
        }
        let span = Span::begin(progress, &format!("checking {name}"), metadata.len());
        let mut hash = Sha256::new();
        digest(&real, &mut hash, &mut |piece| progress.advance(piece.len() as u64))?;
        drop(span);
        let found = hex(hash);
        if found != *expected {
            return Err(HubError::Mismatch {
                file: file.display().to_string(),
                expected: format!("sha256 {expected}"),
                found: format!("sha256 {found}"),
                next: format!(
                    "remove {} and try again, or give the model's full name, which is not pinned",
                    dir.display()
                ),
            });
        }
        // Without a stamp the file is hashed again next time; an unwritable cache costs no more
        // than that.
        let _ = write_atomic(&stamp, line.as_bytes());
    }
    Ok(())
}
