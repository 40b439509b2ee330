//! What a process does beside computing shards: claims, heartbeats and commits.

use super::open_shard::Abandoned;
use super::stop::Stop;
use crate::Failure;
use crate::report::Report;
use sconce_shards::{Claim, Committed, Coordinator, Finished, Manifest, Next};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::Duration;

/// Longest time between two looks for work, while other processes hold all shards that are left.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Seconds before each repetition of a call that failed: a disk or a bucket may be gone for a moment.
const RETRY_SECONDS: [u64; 3] = [1, 5, 25];

/// A process's part in a run.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) coordinator: &'a Coordinator,
    pub(super) manifest: &'a Manifest,
    pub(super) stop: &'a Stop,
    pub(super) report: &'a Report,
}

/// A shard, its bad rows, and what became of its output.
pub(super) type CommitOutcome = (usize, u64, sconce_shards::Result<Committed>);

/// What became of the outputs of this process.
#[derive(Default)]
pub(super) struct RunCounts {
    pub(super) published: usize,
    pub(super) late: usize,
    pub(super) bad_rows: u64,
}

/// Commits that are under way, on the thread of [`Session::commit_all`].
pub(super) struct Commits<'a> {
    pub(super) session: Session<'a>,
    pub(super) finished: SyncSender<(Claim, Finished)>,
    pub(super) committed: Receiver<CommitOutcome>,
    pub(super) in_flight: usize,
    pub(super) counts: &'a mut RunCounts,
}

impl Session<'_> {
    /// Claims a shard that must be computed; `None` at the end.
    pub(super) fn claim_next(&self, commits: &mut Commits<'_>) -> Result<Option<Claim>, Failure> {
        let mut has_said = false;
        loop {
            commits.take_ready()?;
            if self.stop.is_wanted() {
                return Ok(None);
            }
            match self.retry(|| self.coordinator.next())? {
                Next::Work(claim) => match claim.sealed.clone() {
                    Some(sealed) => commits.send(claim, sealed)?,
                    None => return Ok(Some(claim)),
                },
                // A shard that is being committed is held by this process.
                Next::Wait | Next::Complete if commits.in_flight > 0 => commits.take_one()?,
                Next::Complete => return Ok(None),
                Next::Wait => {
                    if !std::mem::replace(&mut has_said, true) {
                        let left = self.manifest.shards.len() - self.coordinator.done();
                        let why = format!("other processes work on the last shards ({left}); waiting for them");
                        self.report.info(&why);
                    }
                    thread::sleep(self.coordinator.interval().min(MAX_WAIT));
                }
            }
        }
    }

    /// Gives a shard back that could not be computed. An error that is not the end of this process's
    /// part in the shard is returned.
    pub(super) fn abandon(&self, claim: &Claim, why: Failure) -> Result<(), Failure> {
        let is_lost = self.coordinator.is_lost(claim.shard);
        self.coordinator.release(claim)?;
        if is_lost {
            let name = self.manifest.shard_name(claim.shard);
            let why = "this process was silent for longer than --lease";
            self.report.warn(&format!("shard {name}: another process took it over, because {why}"));
        } else if !self.stop.is_now() && !why.is::<Abandoned>() {
            return Err(why);
        }
        Ok(())
    }

    /// Calls `attempt` until it succeeds, a few times at most.
    pub(super) fn retry<T>(&self, mut attempt: impl FnMut() -> sconce_shards::Result<T>) -> sconce_shards::Result<T> {
        for seconds in RETRY_SECONDS {
            match attempt() {
                Err(e) if !self.stop.is_now() => {
                    self.report.warn(&format!("{e}; trying again in {seconds} s"));
                    self.stop.sleep(Duration::from_secs(seconds));
                }
                done => return done,
            }
        }
        attempt()
    }

    /// Commits outputs. On a thread of its own, which waits for the disk while the next shard is
    /// computed.
    pub(super) fn commit_all(&self, finished: Receiver<(Claim, Finished)>, committed: Sender<CommitOutcome>) {
        for (claim, finished) in finished {
            let outcome = self.retry(|| self.coordinator.commit(&claim, &finished));
            if committed.send((claim.shard, finished.bad, outcome)).is_err() {
                return;
            }
        }
    }

    /// Writes heartbeats until the other end of `stopped` is dropped.
    pub(super) fn send_heartbeats(&self, stopped: &Receiver<()>) {
        self.every_interval(stopped, "cannot write a heartbeat", Coordinator::send_heartbeats);
    }

    /// Looks at the leases of others until the other end of `stopped` is dropped.
    pub(super) fn watch_others(&self, stopped: &Receiver<()>) {
        self.every_interval(stopped, "cannot read the leases of other processes", Coordinator::watch_others);
    }

    fn every_interval(
        &self,
        stopped: &Receiver<()>,
        problem: &str,
        work: fn(&Coordinator) -> sconce_shards::Result<()>,
    ) {
        let mut has_failed = false;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(self.coordinator.interval()) {
            let failed = work(self.coordinator).err();
            if let Some(e) = failed.as_ref().filter(|_| !has_failed) {
                self.report.warn(&format!("{problem}: {e}; trying again"));
            }
            has_failed = failed.is_some();
        }
    }
}

impl Commits<'_> {
    /// Begins to commit an output.
    pub(super) fn send(&mut self, claim: Claim, finished: Finished) -> Result<(), Failure> {
        self.finished.send((claim, finished))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits for all.
    pub(super) fn take_all(&mut self) -> Result<(), Failure> {
        while self.in_flight > 0 {
            self.take_one()?;
        }
        Ok(())
    }

    fn take_one(&mut self) -> Result<(), Failure> {
        let committed = self.committed.recv()?;
        self.count(committed)
    }

    fn take_ready(&mut self) -> Result<(), Failure> {
        while let Ok(committed) = self.committed.try_recv() {
            self.count(committed)?;
        }
        Ok(())
    }

    fn count(&mut self, (shard, bad, outcome): CommitOutcome) -> Result<(), Failure> {
        self.in_flight -= 1;
        match outcome? {
            Committed::Published => {
                self.counts.published += 1;
                self.counts.bad_rows += bad;
            }
            Committed::AlreadyThere | Committed::Lost => self.counts.late += 1,
            Committed::Refused { published_sha256, refused_sha256 } => {
                let name = self.session.manifest.shard_name(shard);
                self.session.report.warn(&format!(
                    "shard {name}: this output was refused, because another process wrote one of other bytes, which \
                     stays (sha256 {published_sha256}, here {refused_sha256}); other processors round differently"
                ));
            }
        }
        Ok(())
    }
}
