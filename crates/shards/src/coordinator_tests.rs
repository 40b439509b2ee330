//! Several processes with clocks of their own, which end, stand still and come back late.

#[path = "interruption_tests.rs"]
mod interruptions;
#[path = "simulation_tests.rs"]
mod simulation;

use super::*;
use crate::commit::Committed;
use crate::disk::Disk;
use crate::manifest::{Digest as InputDigest, InputFile, Job, Part, Shard, hex};
use crate::memory::Memory;
use crate::record::TEMPORARY;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const LEASE: Duration = Duration::from_secs(1);

/// True time of a simulation, in milliseconds.
type Time = Arc<AtomicU64>;

/// A clock with an offset of its own that runs too fast or too slow.
struct SkewedClock {
    time: Time,
    offset: u64,
    percent: u64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.offset + self.time.load(SeqCst) * self.percent / 100)
    }
}

fn manifest(shards: usize) -> Arc<Manifest> {
    let input = InputFile { name: "in.jsonl".into(), size: 1, rows: shards as u64, digest: InputDigest::Parts };
    let part = |i: usize| Part::Bytes { start: i as u64, end: i as u64 + 1, sha256: String::new() };
    let shard = |i| Shard { input: 0, first_row: i as u64 + 1, rows: 1, part: part(i) };
    Arc::new(Manifest::new(Job::default(), LEASE, vec![input], (0..shards).map(shard).collect()))
}

/// The only right output of a shard.
fn content(shard: usize) -> Vec<u8> {
    format!("PAR1 output of shard {shard} PAR1").into_bytes()
}

fn finish(claim: &Claim, content: &[u8]) -> Finished {
    std::fs::write(&claim.file, content).unwrap();
    Finished {
        file: claim.file.clone(),
        bytes: content.len() as u64,
        sha256: hex(&Sha256::digest(content)),
        rows: 1,
        bad: 0,
        tokens: 3,
        truncated: 0,
        bad_rows: String::new(),
    }
}

struct World {
    store: Arc<dyn Store>,
    manifest: Arc<Manifest>,
    time: Time,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(shards: usize) -> World {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Memory::new(dir.path().into()));
        World { store, manifest: manifest(shards), time: Time::default(), _dir: dir }
    }

    fn on_disk(shards: usize) -> World {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Disk::new(dir.path()).unwrap());
        World { store, manifest: manifest(shards), time: Time::default(), _dir: dir }
    }

    fn join(&self, number: u64, percent: u64) -> Coordinator {
        let clock = SkewedClock { time: self.time.clone(), offset: number * 1_000_003, percent };
        let (store, manifest) = (self.store.clone(), self.manifest.clone());
        let holder = Holder::new(format!("host-{number}")).unwrap();
        let start = Start { store, clock: Arc::new(clock), holder, manifest, first: number as usize * 7 };
        Coordinator::join(start).unwrap()
    }

    fn pass(&self, time: Duration) {
        self.time.fetch_add(time.as_millis() as u64, SeqCst);
    }

    /// The record of a shard, whose output is checked.
    fn done(&self, shard: usize) -> DoneRecord {
        let record: DoneRecord =
            serde_json::from_slice(&self.store.read(&record::done_name(shard)).unwrap().unwrap()).unwrap();
        let data = self.store.read(&self.manifest.output_names(shard).0).unwrap().unwrap();
        assert_eq!((record.bytes, &record.sha256), (data.len() as u64, &hex(&Sha256::digest(&data))));
        record
    }
}

fn work(coordinator: &Coordinator) -> Claim {
    match coordinator.next().unwrap() {
        Next::Work(claim) => claim,
        other => panic!("{other:?}"),
    }
}

/// What the threads of a process do once per interval.
fn tick(coordinator: &Coordinator) {
    coordinator.send_heartbeats().unwrap();
    coordinator.watch_others().unwrap();
}

/// Ticks all processes until the first may take over what the second does not keep alive.
fn wait_for_takeover(world: &World, observer: &Coordinator, others: &[&Coordinator]) -> Claim {
    for _ in 0..100 {
        world.pass(observer.interval());
        others.iter().for_each(|other| tick(other));
        tick(observer);
        if let Next::Work(claim) = observer.next().unwrap() {
            return claim;
        }
    }
    panic!("no shard was taken over");
}

#[test]
fn a_shard_is_claimed_once_and_done_once() {
    let world = World::new(3);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let claims = [work(&a), work(&b), work(&a)];
    let mut shards: Vec<usize> = claims.iter().map(|claim| claim.shard).collect();
    shards.sort_unstable();
    assert_eq!(shards, [0, 1, 2]);
    assert!(matches!(b.next().unwrap(), Next::Wait));
    for (claim, by) in claims.iter().zip([&a, &b, &a]) {
        let finished = finish(claim, &content(claim.shard));
        assert_eq!(by.commit(claim, &finished).unwrap(), Committed::Published);
        assert!(!claim.file.exists());
    }
    for by in [&a, &b] {
        assert!(matches!(by.next().unwrap(), Next::Complete));
    }
    assert!(world.store.list(lease::FOLDER).unwrap().is_empty());
    assert_eq!((0..3).map(|shard| world.done(shard).attempts).sum::<u32>(), 3);
    assert!(matches!(world.join(2, 100).next().unwrap(), Next::Complete));
}

#[test]
fn silent_holder_is_replaced_after_a_lease_time_of_the_observer() {
    let world = World::new(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let claim = work(&a);
    // While it beats, it keeps the shard, however long it takes.
    for _ in 0..100 {
        world.pass(a.interval());
        tick(&a);
        assert!(!a.is_lost(claim.shard));
        tick(&b);
        assert!(matches!(b.next().unwrap(), Next::Wait));
    }
    let before = world.time.load(SeqCst);
    let second = wait_for_takeover(&world, &b, &[]);
    let took = Duration::from_millis(world.time.load(SeqCst) - before);
    assert!((LEASE..LEASE * 2).contains(&took), "{took:?}");
    assert_eq!((second.shard, second.generation), (0, 2));
    // The first one comes back and notices.
    tick(&a);
    assert!(a.is_lost(0));
    let late = finish(&claim, &content(0));
    assert_eq!(a.commit(&claim, &late).unwrap(), Committed::Lost);
    let finished = finish(&second, &content(0));
    assert_eq!(b.commit(&second, &finished).unwrap(), Committed::Published);
    assert_eq!((world.done(0).generation, world.done(0).attempts), (2, 2));
}

#[test]
fn late_output_must_be_equal_or_is_refused() {
    for (late_content, want) in [(content(0), true), (b"PAR1 something else PAR1".to_vec(), false)] {
        let world = World::new(1);
        let (a, b) = (world.join(0, 100), world.join(1, 100));
        let first = work(&a);
        let second = wait_for_takeover(&world, &b, &[]);
        let finished = finish(&second, &content(0));
        assert_eq!(b.commit(&second, &finished).unwrap(), Committed::Published);
        let late = finish(&first, &late_content);
        let committed = a.commit(&first, &late).unwrap();
        assert_eq!(committed == Committed::AlreadyThere, want, "{committed:?}");
        assert_eq!(matches!(committed, Committed::Refused { .. }), !want, "{committed:?}");
        assert_eq!(world.store.list(record::REFUSED).unwrap().len(), usize::from(!want));
        assert_eq!(world.done(0).sha256, finished.sha256);
    }
}

#[test]
fn output_without_a_record_is_completed_or_replaced() {
    // A holder ended between the output and its record; the next one computes the same, something
    // else (another processor), or finds an output that a full disk cut.
    for (there, own, want) in [
        (content(0), content(0), "published"),
        (b"PAR1 of another processor PAR1".to_vec(), content(0), "refused"),
        (b"PAR1 of shard".to_vec(), content(0), "published"),
        (Vec::new(), content(0), "published"),
    ] {
        let world = World::new(1);
        let a = world.join(0, 100);
        world.store.replace(&world.manifest.output_names(0).0, &there).unwrap();
        let claim = work(&a);
        let finished = finish(&claim, &own);
        let committed = a.commit(&claim, &finished).unwrap();
        let is_refused = matches!(committed, Committed::Refused { .. });
        assert_eq!(is_refused, want == "refused", "{committed:?}");
        // The record is that of what is there, so that the run can end.
        assert_eq!(world.done(0).bytes, if is_refused { there.len() } else { own.len() } as u64);
        assert!(matches!(world.join(1, 100).next().unwrap(), Next::Complete));
    }
}

#[test]
fn released_shard_is_free_at_once() {
    let world = World::new(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let claim = work(&a);
    finish(&claim, b"half");
    assert!(matches!(b.next().unwrap(), Next::Wait));
    a.release(&claim).unwrap();
    assert!(!claim.file.exists());
    assert_eq!(work(&b).generation, 2);
}

/// A heartbeat of another thread that waits for the store while the lease is released.
#[test]
fn heartbeat_does_not_undo_a_release() {
    let world = World::new(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let claim = work(&a);
    a.release(&claim).unwrap();
    tick(&a);
    let lease: LeaseRecord =
        serde_json::from_slice(&world.store.read(&lease::file_name(0, 1)).unwrap().unwrap()).unwrap();
    assert!(lease.released && lease.attempts == 1);
    assert_eq!(work(&b).generation, 2);
    assert_eq!(b.state().own[&0].attempts, 2);
}

#[test]
fn leases_of_others_are_looked_at_in_turns() {
    let count = LOOKS * 2 + 3;
    let world = World::new(count);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let mut claims: Vec<usize> = (0..count).map(|_| work(&a).shard).collect();
    claims.sort_unstable();
    let leases = lease::highest(&*world.store, count).unwrap();
    let mut seen = Vec::new();
    for turn in 1..=3 {
        seen.extend(b.leases_of_others(&leases).into_iter().map(|(shard, _)| shard));
        assert!(seen.len() <= turn * LOOKS);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, claims);
    // A holder that is silent loses all of them, however many turns that takes.
    (0..count).for_each(|_| drop(wait_for_takeover(&world, &b, &[])));
}

#[test]
fn host_that_stops_with_all_processes_loses_nothing() {
    let world = World::new(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let claim = work(&a);
    for _ in 0..5 {
        tick(&a);
        assert!(!a.is_lost(claim.shard));
        tick(&b);
        world.pass(Duration::from_secs(3600));
        // The observer looks first.
        tick(&b);
        assert!(matches!(b.next().unwrap(), Next::Wait));
    }
    assert_eq!(a.commit(&claim, &finish(&claim, &content(0))).unwrap(), Committed::Published);
}

#[test]
fn sealed_output_is_not_computed_again() {
    let world = World::on_disk(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let first = work(&a);
    let finished = finish(&first, &content(0));
    a.seal(&first, &finished).unwrap();
    let second = wait_for_takeover(&world, &b, &[]);
    let sealed = second.sealed.clone().expect("the sealed output");
    assert_eq!((sealed.sha256.as_str(), sealed.rows), (finished.sha256.as_str(), 1));
    // The first one was only slow, and commits at the same time.
    assert_eq!(a.commit(&first, &finished).unwrap(), Committed::Lost);
    assert_eq!(b.commit(&second, &sealed).unwrap(), Committed::Published);
    assert_eq!((world.done(0).generation, world.done(0).attempts), (2, 1));
    assert!(world.store.list(TEMPORARY).unwrap().is_empty());

    // Another content than was sealed: computed again.
    let world = World::on_disk(1);
    let (a, b) = (world.join(0, 100), world.join(1, 100));
    let first = work(&a);
    a.seal(&first, &finish(&first, &content(0))).unwrap();
    std::fs::write(&first.file, b"PAR1").unwrap();
    let second = wait_for_takeover(&world, &b, &[]);
    assert!(second.sealed.is_none());
    assert_eq!(b.commit(&second, &finish(&second, &content(0))).unwrap(), Committed::Published);
    assert_eq!(world.done(0).attempts, 2);
}

#[test]
fn damaged_outputs_and_records_are_made_again() {
    let world = World::on_disk(4);
    let a = world.join(0, 100);
    for _ in 0..4 {
        let claim = work(&a);
        let finished = finish(&claim, &content(claim.shard));
        assert_eq!(a.commit(&claim, &finished).unwrap(), Committed::Published);
    }
    let data = |shard| world.manifest.output_names(shard).0;
    world.store.replace(&data(1), &content(1)[..7]).unwrap();
    world.store.replace(&record::done_name(2), b"{\"rows\":").unwrap();
    world.store.remove(&data(3)).unwrap();
    let b = world.join(1, 100);
    assert_eq!(b.done(), 1);
    let mut again = Vec::new();
    while let Next::Work(claim) = b.next().unwrap() {
        let finished = finish(&claim, &content(claim.shard));
        assert_eq!(b.commit(&claim, &finished).unwrap(), Committed::Published, "{}", claim.shard);
        again.push(claim.shard);
    }
    again.sort_unstable();
    assert_eq!(again, [1, 2, 3]);
    (0..4).for_each(|shard| assert_eq!(world.done(shard).bytes, content(shard).len() as u64));
}
