//! One file from the hub to the disk: taken up again where the connection broke, measured, hashed, and refused if it is not
//! what the hub promised.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::error::disk;
use super::http::{Client, Head};
use super::store::{self, Torn};
use super::{HubError, Progress, Span};

/// A connection that breaks is taken up again this often before the user is asked to.
const TRIES: u32 = 4;

/// One file on its way.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) path: &'a str,
    pub(super) name: &'a str,
    pub(super) head: &'a Head,
    pub(super) progress: &'a dyn Progress,
}

impl Download<'_> {
    /// Brings `partial` to its full length, from wherever it stands, and verifies it. A bad or unwritable one is removed;
    /// one that only broke off stays, for the next try.
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
            // Longer than the whole, or of a length that says nothing: begin anew.
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
            // One byte too many is enough to know.
            let rest = self.head.size.map_or(u64::MAX, |size| size.saturating_sub(have).saturating_add(1));
            let poured = store::pour(&mut body.into_reader().take(rest), &mut file, &mut |piece| {
                hash.update(piece);
                have += piece.len() as u64;
                self.progress.advance(piece.len() as u64);
            });
            let broken = |got, why| HubError::Broken { file: self.name.to_owned(), got, why };
            match poured {
                Err(Torn::Write(error)) => return Err(disk("write", partial)(error)),
                Err(Torn::Read(error)) => return Err(broken(have, error.to_string())),
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
            next: "it was thrown away; try again, and if it comes again distrust the hub or a proxy before it"
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
