//! Downloads one file from the hub: resumes a broken connection, and refuses a file whose size or
//! hash differs from what the hub announced.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::error::disk;
use super::http::{Client, Head};
use super::store::{self, CopyError};
use super::{HubError, Progress, Span};

/// Attempts before a broken connection is reported to the user.
const TRIES: u32 = 4;

/// The download of one file.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) path: &'a str,
    pub(super) name: &'a str,
    pub(super) head: &'a Head,
    pub(super) progress: &'a dyn Progress,
}

impl Download<'_> {
    /// Downloads the rest of `partial` and verifies it. Removes it if it is wrong or cannot be
    /// written; an incomplete file stays for the next try.
    pub(super) fn run(&self, partial: &Path) -> Result<(), HubError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.attempt(partial) {
                Err(HubError::Broken { .. }) if tries < TRIES => {
                    self.progress.note(&format!("{}: the connection broke; continuing", self.name));
                    std::thread::sleep(Duration::from_millis(200) * tries);
                }
                Err(error @ (HubError::Mismatch { .. } | HubError::Disk { .. })) => {
                    let _ = fs::remove_file(partial);
                    return Err(error);
                }
                other => return other,
            }
        }
    }

    fn attempt(&self, partial: &Path) -> Result<(), HubError> {
        let mut hash = Sha256::new();
        let mut have = 0;
        match fs::metadata(partial) {
            Ok(begun) if self.head.size.is_some_and(|size| begun.len() <= size) => {
                have = store::digest(partial, &mut hash, &mut |_| {})?;
            }
            // Longer than the file, or of unknown total length: start again.
            Ok(_) => fs::remove_file(partial).map_err(disk("remove", partial))?,
            Err(_) => {}
        }
        if have == 0 || self.head.size != Some(have) {
            let (body, skipped) = self.client.bytes(self.path, have, self.name)?;
            let mut file = File::options().create(true).append(true).open(partial).map_err(disk("write", partial))?;
            if skipped != have {
                file.set_len(0).map_err(disk("write", partial))?;
                (hash, have) = (Sha256::new(), 0);
            }
            let _span = Span::begin(self.progress, self.name, self.head.size.unwrap_or(0));
            self.progress.advance(have);
            // One byte too many is enough to detect a wrong length.
            let rest = self.head.size.map_or(u64::MAX, |size| size.saturating_sub(have).saturating_add(1));
            let copied = store::copy_to(&mut body.into_reader().take(rest), &mut file, &mut |piece| {
                hash.update(piece);
                have += piece.len() as u64;
                self.progress.advance(piece.len() as u64);
            });
            let broken = |got, why| HubError::Broken { file: self.name.to_owned(), got, why };
            match copied {
                Err(CopyError::Write(error)) => return Err(disk("write", partial)(error)),
                Err(CopyError::Read(error)) => return Err(broken(have, error.to_string())),
                Ok(_) if self.head.size.is_some_and(|size| have < size) => {
                    return Err(broken(have, "the hub closed the connection".to_owned()));
                }
                // A crash of the machine must not leave an empty file under a blob's name.
                Ok(_) => file.sync_all().map_err(disk("write", partial))?,
            }
        }
        let mismatch = |expected, found| HubError::Mismatch {
            file: self.name.to_owned(),
            expected,
            found,
            next: "it was deleted; try again, and if it happens again suspect the hub or a proxy in front of it"
                .to_owned(),
        };
        if let Some(size) = self.head.size.filter(|size| *size != have) {
            return Err(mismatch(format!("{size} bytes"), format!("{have} or more")));
        }
        match (self.head.sha256(), store::hex(hash)) {
            (Some(expected), found) if !expected.eq_ignore_ascii_case(&found) => {
                Err(mismatch(format!("sha256 {expected}"), format!("sha256 {found}")))
            }
            _ => Ok(()),
        }
    }
}
