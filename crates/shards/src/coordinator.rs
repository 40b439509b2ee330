//! What a process calls to take part in a run: claim a shard, report progress, give it back.

use crate::clock::Clock;
use crate::commit::remove_local;
use crate::error::Result;
use crate::lease::{self, Holder, LeaseRecord};
use crate::manifest::Manifest;
use crate::observer::Observer;
use crate::record::{self, DoneRecord, Finished, to_json};
use crate::store::{Created, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Heartbeats in a lease time: a holder may miss all but one of them.
const BEATS: u32 = 10;

/// Most leases of other processes that are looked at in one interval. More have their turns later.
const LOOKS: usize = 32;

/// Longest and shortest time between heartbeats.
const MAX_INTERVAL: Duration = Duration::from_secs(6);
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Time between heartbeats.
pub(crate) fn interval(lease: Duration) -> Duration {
    (lease / BEATS).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

/// How a process takes part.
pub struct Start {
    /// The output folder.
    pub store: Arc<dyn Store>,
    /// This process's clock.
    pub clock: Arc<dyn Clock>,
    /// This process.
    pub holder: Holder,
    /// The run.
    pub manifest: Arc<Manifest>,
    /// The shard at which the process begins to look for work. Processes that begin at different
    /// shards rarely want the same one.
    pub first: usize,
}

/// A process's part in a run. Its methods may be called from several threads.
pub struct Coordinator {
    pub(crate) store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    pub(crate) holder: Holder,
    pub(crate) manifest: Arc<Manifest>,
    /// Held while a lease of this process is written or removed, so that a heartbeat does not undo
    /// the release of a lease.
    lease_files: Mutex<()>,
    state: Mutex<State>,
}

pub(crate) struct State {
    observer: Observer,
    pub(crate) own: BTreeMap<usize, OwnLease>,
    /// Shards that this process knows to be done.
    pub(crate) done: Vec<bool>,
    /// Shards whose output is not what their record says.
    pub(crate) damaged: BTreeSet<usize>,
    /// The shard at which this process looks for one that is free.
    cursor: usize,
    /// The shard at which this process looks at the leases of others.
    next_look: usize,
}

/// A lease of this process.
#[derive(Clone, Debug)]
pub(crate) struct OwnLease {
    generation: u32,
    pub(crate) attempts: u32,
    heartbeat: u64,
    progress: Progress,
    is_lost: bool,
}

/// How far a shard is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Rows of the shard that are computed.
    pub rows: u64,
    /// Rows per second of this process, over all its shards.
    pub rate: f64,
}

/// What to do next.
#[derive(Debug)]
pub enum Next {
    /// Work on this shard.
    Work(Claim),
    /// Other processes hold all shards that are left: ask again after an interval.
    Wait,
    /// All shards are done.
    Complete,
}

/// A shard that this process works on.
#[derive(Debug)]
pub struct Claim {
    /// Its number.
    pub shard: usize,
    /// Generation of its lease.
    pub generation: u32,
    /// The local file for its output.
    pub file: PathBuf,
    /// The output of a process that ended between sealing and committing it: it need not be
    /// computed again.
    pub sealed: Option<Finished>,
}

/// A lease of another process, of a shard that is not done.
struct LeaseState {
    /// How many processes have begun to compute the shard; 0 if the lease cannot be read.
    attempts: u32,
    may_take: bool,
}

impl Coordinator {
    /// Joins a run.
    pub fn join(start: Start) -> Result<Coordinator> {
        let Start { store, clock, holder, manifest, first } = start;
        let count = manifest.shards.len();
        let mut done = vec![false; count];
        for entry in store.list(record::DONE)? {
            if let Some(shard) = record::parse_done(&entry.name).filter(|shard| *shard < count) {
                done[shard] = true;
            }
        }
        // A heartbeat thread that is late by an interval has still watched.
        let observer = Observer::new(interval(manifest.lease()) * 2);
        let cursor = if count == 0 { 0 } else { first % count };
        let (own, damaged) = (BTreeMap::new(), BTreeSet::new());
        let state = State { observer, own, done, damaged, cursor, next_look: 0 };
        let (lease_files, state) = (Mutex::default(), Mutex::new(state));
        let coordinator = Coordinator { store, clock, holder, manifest, lease_files, state };
        coordinator.find_damaged()?;
        Ok(coordinator)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease_files(&self) -> MutexGuard<'_, ()> {
        self.lease_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time between heartbeats.
    pub fn interval(&self) -> Duration {
        interval(self.manifest.lease())
    }

    /// Shards that this process knows to be done.
    pub fn done(&self) -> usize {
        self.state().done.iter().filter(|is_done| **is_done).count()
    }

    /// Whether another process has taken a shard over.
    pub fn is_lost(&self, shard: usize) -> bool {
        self.state().own.get(&shard).is_none_or(|own| own.is_lost)
    }

    /// The record of a shard; `None` if it is not done, or if the record is damaged.
    pub(crate) fn done_record(&self, shard: usize) -> Result<Option<DoneRecord>> {
        let content = self.store.read(&record::done_name(shard))?;
        Ok(content.and_then(|content| serde_json::from_slice(&content).ok()))
    }

    /// Claims a shard: one that no process has begun, else one that its holder gave back or left.
    pub fn next(&self) -> Result<Next> {
        let leases = lease::highest(&*self.store, self.manifest.shards.len())?;
        if let Some(claim) = self.claim_free(&leases)? {
            return Ok(Next::Work(claim));
        }
        for (shard, generation) in self.leases_of_others(&leases) {
            if let Some(LeaseState { attempts, may_take: true }) = self.observe(shard, generation)?
                && let Some(claim) = self.claim(shard, generation, attempts)?
            {
                return Ok(Next::Work(claim));
            }
        }
        let is_complete = self.state().done.iter().all(|is_done| *is_done);
        if is_complete {
            self.remove_leftovers();
        }
        Ok(if is_complete { Next::Complete } else { Next::Wait })
    }

    fn claim_free(&self, leases: &BTreeMap<usize, u32>) -> Result<Option<Claim>> {
        let count = self.manifest.shards.len();
        let first = self.state().cursor;
        for shard in (first..count).chain(0..first) {
            let is_free = {
                let state = self.state();
                !state.done[shard] && !state.own.contains_key(&shard) && !leases.contains_key(&shard)
            };
            if is_free
                && !self.is_done(shard)?
                && let Some(claim) = self.claim(shard, 0, 0)?
            {
                self.state().cursor = (shard + 1) % count;
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    /// The leases of other processes whose turn it is to be looked at, and their generations.
    fn leases_of_others(&self, leases: &BTreeMap<usize, u32>) -> Vec<(usize, u32)> {
        let mut state = self.state();
        let next = state.next_look;
        let others = leases.range(next..).chain(leases.range(..next));
        let others = others.filter(|(shard, _)| !state.own.contains_key(*shard)).take(LOOKS);
        let others: Vec<(usize, u32)> = others.map(|(shard, generation)| (*shard, *generation)).collect();
        state.next_look = others.last().map_or(0, |(shard, _)| shard + 1);
        others
    }

    /// Whether a shard is done, by the store if this process does not know it yet.
    fn is_done(&self, shard: usize) -> Result<bool> {
        {
            let state = self.state();
            if state.done[shard] || state.damaged.contains(&shard) {
                return Ok(state.done[shard]);
            }
        }
        let is_done = self.store.exists(&record::done_name(shard))?;
        if is_done {
            self.state().done[shard] = true;
        }
        Ok(is_done)
    }

    /// Looks at a lease of another process; `None` if it is gone, or its shard is done.
    fn observe(&self, shard: usize, generation: u32) -> Result<Option<LeaseState>> {
        if self.is_done(shard)? {
            self.remove_leases(shard, generation);
            return Ok(None);
        }
        let Some(content) = self.store.read(&lease::file_name(shard, generation))? else { return Ok(None) };
        let unchanged = self.state().observer.look(shard, generation, &content, self.clock.now());
        let lease: Option<LeaseRecord> = serde_json::from_slice(&content).ok();
        let is_released = lease.as_ref().is_some_and(|lease| lease.released);
        let attempts = lease.as_ref().map_or(0, |lease| lease.attempts);
        Ok(Some(LeaseState { attempts, may_take: is_released || unchanged >= self.manifest.lease() }))
    }

    /// Claims the generation after `before`; `None` if another process was faster.
    fn claim(&self, shard: usize, before: u32, attempts: u32) -> Result<Option<Claim>> {
        let Some(generation) = before.checked_add(1) else { return Ok(None) };
        let attempts = attempts.saturating_add(1);
        let own = OwnLease { generation, attempts, heartbeat: 0, progress: Progress::default(), is_lost: false };
        let name = lease::file_name(shard, generation);
        if self.store.create(&name, &self.lease_content(&own, false)?)? == Created::Exists
            && !self.has_created(&name)?
        {
            return Ok(None);
        }
        // Heartbeats begin before the hash of a sealed output is checked.
        self.state().own.insert(shard, own);
        match self.prepare(shard, before, generation) {
            Ok(None) => {
                // Its last holder finished it between the look and the claim.
                self.end_lease(shard, generation, true);
                Ok(None)
            }
            Err(e) => {
                let _ = self.give_back(shard);
                Err(e)
            }
            claim => claim,
        }
    }

    /// Whether this process has created a lease that exists: an object store may create it, fail to
    /// answer, and find it when the request is repeated.
    fn has_created(&self, name: &str) -> Result<bool> {
        let lease = self.store.read(name)?.and_then(|content| serde_json::from_slice::<LeaseRecord>(&content).ok());
        Ok(lease.is_some_and(|lease| lease.holder == self.holder && lease.heartbeat == 0 && !lease.released))
    }

    /// Prepares the work on a shard whose lease this process has; `None` if the shard is done.
    fn prepare(&self, shard: usize, before: u32, generation: u32) -> Result<Option<Claim>> {
        self.repair(shard)?;
        if self.store.exists(&record::done_name(shard))? {
            return Ok(None);
        }
        let file = self.store.scratch()?.join(format!("{shard:05}.g{generation}.{}.parquet", self.holder.id));
        let mut claim = Claim { shard, generation, file, sealed: None };
        if let Some(finished) = self.sealed(shard, before, &claim.file)? {
            if let Some(own) = self.state().own.get_mut(&shard) {
                own.attempts -= 1;
            }
            self.seal(&claim, &finished)?;
            claim.sealed = Some(finished);
        }
        self.remove_temporary(shard, before);
        Ok(Some(claim))
    }

    fn lease_content(&self, own: &OwnLease, released: bool) -> Result<Vec<u8>> {
        let OwnLease { attempts, heartbeat, progress, .. } = own;
        let record = LeaseRecord {
            holder: self.holder.clone(),
            heartbeat: *heartbeat,
            attempts: *attempts,
            released,
            rows: progress.rows,
            rate: progress.rate,
        };
        to_json(&record)
    }

    /// Reports progress. The next heartbeat publishes it.
    pub fn progress(&self, shard: usize, progress: Progress) {
        if let Some(own) = self.state().own.get_mut(&shard) {
            own.progress = progress;
        }
    }

    /// Writes the heartbeats of all leases of this process, and finds out which of them other
    /// processes took over. To be called once per interval. After an error the next call tries again.
    pub fn send_heartbeats(&self) -> Result<()> {
        let shards: Vec<usize> = self.state().own.keys().copied().collect();
        // All of them, also after an error.
        let sent: Vec<Result<()>> = shards.into_iter().map(|shard| self.send_heartbeat(shard)).collect();
        sent.into_iter().collect()
    }

    fn send_heartbeat(&self, shard: usize) -> Result<()> {
        let _writing = self.lease_files();
        let own = {
            let mut state = self.state();
            let Some(own) = state.own.get_mut(&shard).filter(|own| !own.is_lost) else { return Ok(()) };
            own.heartbeat += 1;
            own.clone()
        };
        if self.store.exists(&lease::file_name(shard, own.generation.saturating_add(1)))? {
            if let Some(own) = self.state().own.get_mut(&shard) {
                own.is_lost = true;
            }
            return Ok(());
        }
        self.store.replace(&lease::file_name(shard, own.generation), &self.lease_content(&own, false)?)
    }

    /// Looks at the leases of other processes. To be called once per interval, by another thread
    /// than the one of the heartbeats, which must not wait for it.
    pub fn watch_others(&self) -> Result<()> {
        self.state().observer.watch(self.clock.now());
        let leases = lease::highest(&*self.store, self.manifest.shards.len())?;
        self.state().observer.retain(|shard| leases.contains_key(&shard));
        self.leases_of_others(&leases)
            .into_iter()
            .try_for_each(|(shard, generation)| self.observe(shard, generation).map(drop))
    }

    /// Gives a shard back, so that another process may claim it at once.
    pub fn release(&self, claim: &Claim) -> Result<()> {
        remove_local(&claim.file);
        self.give_back(claim.shard)
    }

    fn give_back(&self, shard: usize) -> Result<()> {
        let _writing = self.lease_files();
        let Some(own) = self.state().own.remove(&shard).filter(|own| !own.is_lost) else { return Ok(()) };
        self.store.replace(&lease::file_name(shard, own.generation), &self.lease_content(&own, true)?)
    }

    /// Ends the work on a shard that is done, or that another process has.
    pub(crate) fn end_lease(&self, shard: usize, generation: u32, is_done: bool) {
        let _writing = self.lease_files();
        {
            let mut state = self.state();
            state.own.remove(&shard);
            state.done[shard] |= is_done;
        }
        if is_done {
            self.remove_leases(shard, generation);
        }
    }

    /// Removes the leases of a shard that is done, up to a generation. A lease that cannot be removed
    /// is removed by the next process that looks at it.
    fn remove_leases(&self, shard: usize, last: u32) {
        // Names are guessed only where a listing would cost more.
        for generation in (1..=last.min(64)).rev().chain((last > 64).then_some(last)) {
            let _ = self.store.remove(&lease::file_name(shard, generation));
        }
    }
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
