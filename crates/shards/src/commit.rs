//! Outputs: sealed when they are complete, committed when they are the shard's own.

use crate::coordinator::{Claim, Coordinator};
use crate::damage::TAKEN;
use crate::error::{Error, Result};
use crate::lease::{self, Holder};
use crate::manifest::hex;
use crate::record::{self, DoneRecord, Finished, TEMPORARY, to_json};
use crate::store::{Created, Published};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What became of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is the shard's output.
    Published,
    /// The shard had an output already, of the same bytes.
    AlreadyThere,
    /// Another process holds the shard by now. The output is dropped, the other's will be taken.
    Lost,
    /// The shard has an output of other bytes, which stays.
    Refused {
        /// SHA-256 of the output that stays.
        published_sha256: String,
        /// SHA-256 of the output that was refused.
        refused_sha256: String,
    },
}

/// What is recorded about an output that was refused.
#[derive(Serialize)]
struct RefusedRecord<'a> {
    published_sha256: &'a str,
    refused_sha256: &'a str,
    holder: &'a Holder,
}

impl Coordinator {
    /// Records that an output is complete. If the process ends before it commits it, and others can
    /// read the local file, the next holder commits it instead of computing it again.
    pub fn seal(&self, claim: &Claim, finished: &Finished) -> Result<()> {
        if !self.store.shares_scratch() {
            return Ok(());
        }
        self.store.replace(&sealed_name(claim.shard, claim.generation), &to_json(finished)?)
    }

    /// Takes the output that the holder of a generation sealed, if it is whole, as the local file
    /// `to`. That holder may still live and remove its own file, but not one of another name.
    pub(crate) fn sealed(&self, shard: usize, generation: u32, to: &Path) -> Result<Option<Finished>> {
        if generation == 0 || !self.store.shares_scratch() {
            return Ok(None);
        }
        let Some(content) = self.store.read(&sealed_name(shard, generation))? else { return Ok(None) };
        let Ok(mut finished) = serde_json::from_slice::<Finished>(&content) else { return Ok(None) };
        // The folder may have another path on this host.
        let Some(name) = finished.file.file_name() else { return Ok(None) };
        if std::fs::rename(self.store.scratch()?.join(name), to).is_err() {
            return Ok(None);
        }
        finished.file = to.into();
        match File::open(to).and_then(identify) {
            Ok(found) if found.sha256 == finished.sha256 => Ok(Some(finished)),
            _ => {
                remove_local(to);
                Ok(None)
            }
        }
    }

    /// Makes an output the shard's own, unless the shard has one or another process holds it. After
    /// an error it may be called again.
    pub fn commit(&self, claim: &Claim, finished: &Finished) -> Result<Committed> {
        let committed = self.try_commit(claim, finished)?;
        if let Committed::Refused { published_sha256, refused_sha256 } = &committed {
            let name = format!("{}/{}.{}.json", record::REFUSED, self.manifest.shard_name(claim.shard), self.holder.id);
            let record = RefusedRecord { published_sha256, refused_sha256, holder: &self.holder };
            self.store.replace(&name, &to_json(&record)?)?;
        }
        remove_local(&finished.file);
        self.remove_temporary(claim.shard, claim.generation);
        self.end_lease(claim.shard, claim.generation, !matches!(committed, Committed::Lost));
        Ok(committed)
    }

    fn try_commit(&self, claim: &Claim, finished: &Finished) -> Result<Committed> {
        let (data, bad) = self.manifest.output_names(claim.shard);
        if let Some(done) = self.done_record(claim.shard)? {
            return Ok(self.compared(&done, finished));
        }
        // The fence: a process that took the shard over will publish it. If that happens only after
        // this check, both publish, and `publish` lets the first one in.
        if self.is_taken_over(claim)? {
            return Ok(Committed::Lost);
        }
        // The output of other bytes that stays, if there is one.
        let mut other = None;
        match self.publish(finished, &data)? {
            None => return Ok(Committed::Lost),
            Some(Published::New) => {}
            Some(Published::Exists) => {
                let found = identify(self.store.open(&data)?).map_err(Error::io(self.store.display(&data)))?;
                if !found.is_whole {
                    if self.is_taken_over(claim)? || self.store.exists(&record::done_name(claim.shard))? {
                        return Ok(Committed::Lost);
                    }
                    self.take_damaged(&data, |local| {
                        let taken = File::open(local).and_then(identify);
                        Ok(taken.map_err(Error::io(local.display().to_string()))?.is_whole)
                    })?;
                    if self.publish(finished, &data)? != Some(Published::New) {
                        return Ok(Committed::Lost);
                    }
                } else if found.sha256 != finished.sha256 {
                    other = Some(found);
                }
            }
        }
        // Only now, so that a late process does not write over the bad rows of an output that stays.
        match finished.bad_rows.is_empty() {
            _ if other.is_some() => {}
            true => self.store.remove(&bad)?,
            false => self.store.replace(&bad, finished.bad_rows.as_bytes())?,
        }
        let attempts = self.state().own.get(&claim.shard).map_or(1, |own| own.attempts);
        let (bytes, sha256) = match &other {
            Some(found) => (found.bytes, found.sha256.clone()),
            None => (finished.bytes, finished.sha256.clone()),
        };
        let record = DoneRecord {
            rows: finished.rows,
            bad: finished.bad,
            tokens: finished.tokens,
            truncated: finished.truncated,
            bytes,
            sha256,
            generation: claim.generation,
            attempts,
            holder: self.holder.clone(),
        };
        let name = record::done_name(claim.shard);
        match self.store.create(&name, &to_json(&record)?)? {
            Created::New => {
                // The holder that made the other output may have ended before it wrote its bad rows.
                if other.is_some() && !finished.bad_rows.is_empty() {
                    self.store.create(&bad, finished.bad_rows.as_bytes())?;
                }
                Ok(self.compared(&record, finished))
            }
            Created::Exists => match self.done_record(claim.shard)? {
                Some(done) => Ok(self.compared(&done, finished)),
                None => Err(Error::Damaged { at: self.store.display(&name), why: "not a record of a shard".into() }),
            },
        }
    }

    /// Compares an output with the one that the shard has by its record.
    fn compared(&self, done: &DoneRecord, finished: &Finished) -> Committed {
        match done.sha256 == finished.sha256 {
            true if done.holder == self.holder => Committed::Published,
            true => Committed::AlreadyThere,
            false => {
                Committed::Refused { published_sha256: done.sha256.clone(), refused_sha256: finished.sha256.clone() }
            }
        }
    }

    /// Whether another process has claimed the shard since.
    fn is_taken_over(&self, claim: &Claim) -> Result<bool> {
        let next = lease::file_name(claim.shard, claim.generation.saturating_add(1));
        Ok(self.is_lost(claim.shard) || self.store.exists(&next)?)
    }

    /// Publishes an output; `None` if the local file is gone, because a later holder of the shard
    /// removed it.
    fn publish(&self, finished: &Finished, name: &str) -> Result<Option<Published>> {
        match self.store.publish(&finished.file, name) {
            Err(_) if !finished.file.exists() => Ok(None),
            published => published.map(Some),
        }
    }

    /// Removes what the holders of generations up to `last` left behind. What cannot be removed does
    /// no harm.
    pub(crate) fn remove_temporary(&self, shard: usize, last: u32) {
        let prefix = format!("{shard:05}.g");
        if last > 0 {
            self.remove_scratch(|name| {
                let generation =
                    name.strip_prefix(&prefix).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
                generation.is_some_and(|generation| generation <= last)
            });
        }
    }

    /// Removes what processes left behind that were killed, or that are late, when all shards are
    /// done.
    pub(crate) fn remove_leftovers(&self) {
        // A file that was taken away may be a good one that gets its name back.
        self.remove_scratch(|name| !name.ends_with(TAKEN));
    }

    fn remove_scratch(&self, is_left: impl Fn(&str) -> bool) {
        if !self.store.shares_scratch() {
            return;
        }
        for entry in self.store.list(TEMPORARY).unwrap_or_default() {
            if is_left(&entry.name) {
                let _ = self.store.remove(&format!("{TEMPORARY}/{}", entry.name));
            }
        }
    }
}

/// What identifies an output that exists.
struct Identity {
    bytes: u64,
    sha256: String,
    /// Whether it begins and ends as a Parquet file does.
    is_whole: bool,
}

const MAGIC: &[u8] = b"PAR1";

fn identify(mut from: impl Read) -> std::io::Result<Identity> {
    let (mut hash, mut buffer, mut size) = (Sha256::new(), vec![0; 1 << 18], 0u64);
    let (mut head, mut tail): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let bytes = &buffer[..count];
        hash.update(bytes);
        size += count as u64;
        head.extend(bytes.iter().take(MAGIC.len() - head.len()));
        tail.extend_from_slice(&bytes[count.saturating_sub(MAGIC.len())..]);
        tail.drain(..tail.len().saturating_sub(MAGIC.len()));
    }
    let is_whole = size >= 12 && head == MAGIC && tail == MAGIC;
    Ok(Identity { bytes: size, sha256: hex(&hash.finalize()), is_whole })
}

fn sealed_name(shard: usize, generation: u32) -> String {
    format!("{TEMPORARY}/{shard:05}.g{generation}.sealed.json")
}

/// Removes a local file that may be gone already.
pub(crate) fn remove_local(file: &Path) {
    let _ = std::fs::remove_file(file);
}
