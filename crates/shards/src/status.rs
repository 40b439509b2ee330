//! How far a run is, as a process sees it that computes nothing.

use crate::clock::Clock;
use crate::coordinator::interval;
use crate::error::Result;
use crate::lease::{self, Holder, LeaseRecord};
use crate::manifest::Manifest;
use crate::observer::Observer;
use crate::record::{self, DoneRecord};
use crate::store::Store;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Watches a run. Heartbeats are measured by this process's clock, from its first look on.
pub struct Watch {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    manifest: Arc<Manifest>,
    observer: Observer,
    /// The lease of each shard at the first look.
    first: BTreeMap<usize, (u32, Vec<u8>)>,
    /// Bad rows of done shards, which do not change.
    bad_rows: BTreeMap<usize, u64>,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// All shards.
    pub shards: usize,
    /// Shards that are done.
    pub done: usize,
    /// Shards with a lease.
    pub in_work: Vec<InWork>,
    /// Shards that no process has begun, or that were given back.
    pub free: usize,
    /// Rows of all shards.
    pub rows: u64,
    /// Rows that are computed: of done shards, and of shards in work by their last heartbeat.
    pub rows_done: u64,
    /// Rows without a result, in the shards that are done.
    pub bad_rows: u64,
    /// Outputs that were refused because the shard had another one.
    pub refused: usize,
    /// Rows per second of all processes at work, as they report.
    pub rate: f64,
    /// Seconds until the end at this rate, if it is known.
    pub eta_seconds: Option<f64>,
}

/// A shard with a lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InWork {
    /// Its number.
    pub shard: usize,
    /// Name of its files.
    pub name: String,
    /// Who works on it; `None` if the lease cannot be read.
    pub holder: Option<Holder>,
    /// Generation of the lease.
    pub generation: u32,
    /// Heartbeats so far.
    pub heartbeat: u64,
    /// Rows of the shard.
    pub rows: u64,
    /// Rows that are computed.
    pub rows_done: u64,
    /// Whether the heartbeat changed since the first look.
    pub has_changed: bool,
    /// Seconds for which it has not changed, as far as this process has watched.
    pub unchanged_seconds: f64,
}

impl Watch {
    /// Begins to watch.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, manifest: Arc<Manifest>) -> Watch {
        let observer = Observer::new(Duration::MAX);
        Watch { store, clock, manifest, observer, first: BTreeMap::new(), bad_rows: BTreeMap::new() }
    }

    /// Time between heartbeats of the processes at work.
    pub fn interval(&self) -> Duration {
        interval(self.manifest.lease())
    }

    /// Looks at everything.
    pub fn look(&mut self) -> Result<Status> {
        let count = self.manifest.shards.len();
        let done: BTreeSet<usize> = {
            let records = self.store.list(record::DONE)?;
            records.iter().filter_map(|entry| record::parse_done(&entry.name)).filter(|shard| *shard < count).collect()
        };
        let mut leases = lease::highest(&*self.store, count)?;
        leases.retain(|shard, _| !done.contains(shard));
        let mut in_work = Vec::new();
        let mut rates: BTreeMap<String, f64> = BTreeMap::new();
        for (&shard, &generation) in &leases {
            let Some(content) = self.store.read(&lease::file_name(shard, generation))? else { continue };
            let unchanged = self.observer.look(shard, generation, &content, self.clock.now());
            let first = self.first.entry(shard).or_insert_with(|| (generation, content.clone()));
            let has_changed = *first != (generation, content.clone());
            let lease: Option<LeaseRecord> = serde_json::from_slice(&content).ok();
            if lease.as_ref().is_some_and(|lease| lease.released) {
                continue;
            }
            if let Some(lease) = lease.as_ref().filter(|_| unchanged < self.manifest.lease()) {
                // A process reports one rate in all of its leases.
                rates.insert(lease.holder.id.clone(), lease.rate);
            }
            in_work.push(InWork {
                shard,
                name: self.manifest.shard_name(shard),
                generation,
                heartbeat: lease.as_ref().map_or(0, |lease| lease.heartbeat),
                rows: self.manifest.shards[shard].rows,
                rows_done: lease.as_ref().map_or(0, |lease| lease.rows),
                holder: lease.map(|lease| lease.holder),
                has_changed,
                unchanged_seconds: unchanged.as_secs_f64(),
            });
        }
        let bad_rows = self.count_bad(&done)?;
        let rows = self.manifest.rows();
        let rows_done = done.iter().map(|shard| self.manifest.shards[*shard].rows).sum::<u64>()
            + in_work.iter().map(|shard| shard.rows_done).sum::<u64>();
        let rate: f64 = rates.values().filter(|rate| rate.is_finite()).sum();
        let left = rows.saturating_sub(rows_done);
        Ok(Status {
            shards: count,
            done: done.len(),
            free: count - done.len() - in_work.len(),
            in_work,
            rows,
            rows_done,
            bad_rows,
            refused: self.store.list(record::REFUSED)?.len(),
            rate,
            eta_seconds: (rate > 0.0).then(|| left as f64 / rate),
        })
    }

    /// Bad rows of done shards. Only shards with a side file have any.
    fn count_bad(&mut self, done: &BTreeSet<usize>) -> Result<u64> {
        for entry in self.store.list(record::BAD)? {
            let number = entry.name.split('-').next().and_then(|number| number.parse::<usize>().ok());
            let Some(shard) = number.filter(|shard| done.contains(shard) && !self.bad_rows.contains_key(shard)) else {
                continue;
            };
            let content = self.store.read(&record::done_name(shard))?;
            if let Some(record) = content.and_then(|content| serde_json::from_slice::<DoneRecord>(&content).ok()) {
                self.bad_rows.insert(shard, record.bad);
            }
        }
        Ok(self.bad_rows.values().sum())
    }
}

impl Status {
    /// Whether the heartbeats of all shards in work have changed since the first look.
    pub fn all_changed(&self) -> bool {
        self.in_work.iter().all(|shard| shard.has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Coordinator, Next, Progress, Start};
    use crate::manifest::{Digest, InputFile, Job, Part, Shard};
    use crate::memory::Memory;
    use crate::record::Finished;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Hand(Mutex<Duration>);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn status_counts_shards_rows_and_heartbeats() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Memory::new(dir.path().into()));
        let input = InputFile { name: "x.parquet".into(), size: 1, rows: 40, digest: Digest::Parts };
        let part = |i| Part::RowGroups { start: i, end: i + 1 };
        let shards = (0..4).map(|i| Shard { input: 0, first_row: 10 * i + 1, rows: 10, part: part(i as usize) });
        let lease = Duration::from_secs(10);
        let manifest = Arc::new(Manifest::new(Job::default(), lease, vec![input], shards.collect()));
        let clock = Arc::new(Hand::default());
        let holder = Holder::new("here".into()).unwrap();
        let start = Start { store: store.clone(), clock: clock.clone(), holder, manifest: manifest.clone(), first: 0 };
        let worker = Coordinator::join(start).unwrap();
        let mut claims = Vec::new();
        for _ in 0..3 {
            let Next::Work(claim) = worker.next().unwrap() else { panic!() };
            claims.push(claim);
        }
        std::fs::write(&claims[0].file, "PAR1").unwrap();
        let finished = Finished {
            file: claims[0].file.clone(),
            bytes: 4,
            sha256: "a".into(),
            rows: 8,
            bad: 2,
            tokens: 9,
            truncated: 0,
            bad_rows: "{\"row\":1}\n{\"row\":2}\n".into(),
        };
        worker.commit(&claims[0], &finished).unwrap();
        worker.release(&claims[1]).unwrap();
        worker.progress(2, Progress { rows: 5, rate: 2.5 });
        worker.send_heartbeats().unwrap();
        let mut watch = Watch::new(store, clock.clone(), manifest);
        let first = watch.look().unwrap();
        assert_eq!((first.shards, first.done, first.in_work.len(), first.free), (4, 1, 1, 2));
        assert_eq!((first.rows, first.rows_done, first.bad_rows, first.refused), (40, 15, 2, 0));
        assert_eq!((first.rate, first.eta_seconds), (2.5, Some(10.0)));
        let shard = &first.in_work[0];
        assert_eq!((shard.shard, shard.name.as_str(), shard.heartbeat), (2, "00002-x", 1));
        assert!(!first.all_changed() && shard.unchanged_seconds == 0.0);
        *clock.0.lock().unwrap() += Duration::from_secs(3);
        assert_eq!(watch.look().unwrap().in_work[0].unchanged_seconds, 3.0);
        worker.send_heartbeats().unwrap();
        let second = watch.look().unwrap();
        assert!(second.all_changed() && second.in_work[0].unchanged_seconds == 0.0);
        // A holder that is silent for a lease time adds nothing to the rate.
        *clock.0.lock().unwrap() += Duration::from_secs(11);
        assert_eq!(watch.look().unwrap().eta_seconds, None);
    }
}
