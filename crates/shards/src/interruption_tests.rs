//! A process that is interrupted at each of its calls of the store in turn: it stands still until
//! another process has taken its shard over and completed it with other bytes, or the answer is lost.

use super::*;
use crate::error::Error;
use crate::record::DATA;
use crate::store::{Entry, Published};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

/// What happens at a call.
enum Interruption {
    /// The process stands still before it, while this runs.
    Run(Box<dyn FnOnce() + Send>),
    /// The call succeeds, and its answer is lost.
    LoseAnswer,
}

/// A store with an interruption at one of its calls.
struct Interrupted {
    inner: Arc<dyn Store>,
    /// Calls until then.
    left: AtomicUsize,
    interruption: Mutex<Option<Interruption>>,
}

impl Interrupted {
    fn call<T>(&self, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        let is_it = self.left.fetch_sub(1, SeqCst) == 0;
        let interruption = self.interruption.lock().unwrap().take_if(|_| is_it);
        match interruption {
            Some(Interruption::Run(run)) => run(),
            Some(Interruption::LoseAnswer) => {
                return call(&*self.inner).and(Err(Error::Input("the answer is lost".into())));
            }
            None => {}
        }
        call(&*self.inner)
    }
}

impl Store for Interrupted {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.call(|store| store.read(name))
    }
    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.call(|store| store.size(name))
    }
    fn create(&self, name: &str, content: &[u8]) -> Result<Created> {
        self.call(|store| store.create(name, content))
    }
    fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        self.call(|store| store.replace(name, content))
    }
    fn take_away(&self, name: &str, local: &Path) -> Result<bool> {
        self.call(|store| store.take_away(name, local))
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.call(|store| store.remove(name))
    }
    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        self.call(|store| store.list(folder))
    }
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        self.call(|store| store.open(name))
    }
    fn publish(&self, local: &Path, name: &str) -> Result<Published> {
        self.call(|store| store.publish(local, name))
    }
    fn scratch(&self) -> Result<PathBuf> {
        self.inner.scratch()
    }
    fn shares_scratch(&self) -> bool {
        self.inner.shares_scratch()
    }
    fn display(&self, name: &str) -> String {
        self.inner.display(name)
    }
}

/// What the shard has before the process claims it.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// An output that was cut, without a record.
    CutOutput,
    /// An output of another process, without a record.
    OtherOutput,
    /// An output that was cut after its record was written.
    CutAndRecorded,
}

/// The side files of the process that is interrupted, and of the other one.
const LATE_BAD_ROWS: &str = "{\"row\":1,\"reason\":\"late\"}\n";
const OTHER_BAD_ROWS: &str = "{\"row\":1,\"reason\":\"other\"}\n";

/// The output of the other one.
const OTHER_OUTPUT: &[u8] = b"PAR1 of the other process PAR1";

impl World {
    fn joined_with(&self, store: Arc<dyn Store>) -> Coordinator {
        let clock = SkewedClock { time: self.time.clone(), offset: 0, percent: 100 };
        let holder = Holder::new("interrupted".into()).unwrap();
        Coordinator::join(Start { store, clock: Arc::new(clock), holder, manifest: self.manifest.clone(), first: 0 })
            .unwrap()
    }

    fn interrupted(&self) -> Arc<Interrupted> {
        let (left, interruption) = (AtomicUsize::new(usize::MAX), Mutex::default());
        Arc::new(Interrupted { inner: self.store.clone(), left, interruption })
    }

    fn set_up(&self, before: Before) {
        let data = self.manifest.output_names(0).0;
        match before {
            Before::Nothing => {}
            Before::CutOutput => self.store.replace(&data, b"PAR1 cut").unwrap(),
            Before::OtherOutput => self.store.replace(&data, b"PAR1 of a third process PAR1").unwrap(),
            Before::CutAndRecorded => {
                let first = self.join(9, 100);
                let claim = work(&first);
                first.commit(&claim, &finish(&claim, &content(0))).unwrap();
                self.store.replace(&data, b"PAR1 cut").unwrap();
            }
        }
    }
}

/// Takes part until all shards are done.
fn complete(coordinator: &Coordinator, time: &Time) {
    for _ in 0..100 {
        match coordinator.next().unwrap() {
            Next::Work(claim) => {
                let computed = || Finished { bad: 1, bad_rows: OTHER_BAD_ROWS.into(), ..finish(&claim, OTHER_OUTPUT) };
                let finished = claim.sealed.clone().unwrap_or_else(computed);
                coordinator.commit(&claim, &finished).unwrap();
            }
            Next::Wait => {
                time.fetch_add(coordinator.interval().as_millis() as u64, SeqCst);
                coordinator.watch_others().unwrap();
            }
            Next::Complete => return,
        }
    }
    panic!("the run does not end");
}

/// Interrupts a process before its call `number`; `false` if it makes fewer calls.
fn interrupt(world: &World, before: Before, number: usize) -> bool {
    world.set_up(before);
    let store = world.interrupted();
    let late = world.joined_with(store.clone());
    // It is there before the interruption, and knows of the same damage.
    let (other, time) = (world.join(1, 100), world.time.clone());
    *store.interruption.lock().unwrap() = Some(Interruption::Run(Box::new(move || complete(&other, &time))));
    store.left.store(number, SeqCst);

    if let Next::Work(claim) = late.next().unwrap() {
        let finished = Finished { bad: 1, bad_rows: LATE_BAD_ROWS.into(), ..finish(&claim, &content(0)) };
        late.seal(&claim, &finished).unwrap();
        late.commit(&claim, &finished).unwrap();
    }
    let was_interrupted = store.interruption.lock().unwrap().take().is_none();
    let done = world.done(0);
    // The run is complete for a process that comes later, too: it finds no damage.
    let third = world.join(2, 100);
    assert_eq!(third.done(), 1, "{before:?}, call {number}");
    assert!(matches!(third.next().unwrap(), Next::Complete));
    assert_eq!(world.done(0), done);
    // The bad rows are those of the output that stays.
    let bad = world.store.read(&world.manifest.output_names(0).1).unwrap().unwrap();
    let by_output = [(content(0), LATE_BAD_ROWS), (OTHER_OUTPUT.to_vec(), OTHER_BAD_ROWS)];
    for (_, rows) in by_output.iter().filter(|(output, _)| done.sha256 == hex(&Sha256::digest(output))) {
        assert_eq!(bad, rows.as_bytes(), "{before:?}, call {number}");
    }
    assert_eq!(done.bad, 1);
    assert_eq!(world.store.list(DATA).unwrap().len(), 1);
    assert!(world.store.list(lease::FOLDER).unwrap().is_empty(), "{before:?}, call {number}");
    let left: Vec<Entry> = world.store.list(TEMPORARY).unwrap();
    assert!(left.is_empty(), "{before:?}, call {number}: {left:?}");
    was_interrupted
}

#[test]
fn late_process_never_spoils_an_output_that_is_recorded() {
    for make in [World::new as fn(usize) -> World, World::on_disk] {
        for before in [Before::Nothing, Before::CutOutput, Before::OtherOutput, Before::CutAndRecorded] {
            // Damage is looked for on disks only.
            if matches!(before, Before::CutAndRecorded) && !make(1).store.shares_scratch() {
                continue;
            }
            let calls = (0..200).take_while(|number| interrupt(&make(1), before, *number)).count();
            assert!((8..200).contains(&calls), "{before:?}: {calls} calls");
        }
    }
}

/// Loses the answer to call `number` of a process, which tries again; `false` if it makes fewer calls.
fn lose_answer(world: &World, before: Before, number: usize) -> bool {
    world.set_up(before);
    let store = world.interrupted();
    let process = world.joined_with(store.clone());
    *store.interruption.lock().unwrap() = Some(Interruption::LoseAnswer);
    store.left.store(number, SeqCst);
    let claim = (0..100).find_map(|_| {
        world.pass(process.interval());
        let _ = process.watch_others();
        match process.next() {
            Ok(Next::Work(claim)) => Some(claim),
            Ok(_) | Err(_) => None,
        }
    });
    let claim = claim.expect("the shard");
    let finished = Finished { bad: 1, bad_rows: LATE_BAD_ROWS.into(), ..finish(&claim, &content(0)) };
    let _ = process.seal(&claim, &finished);
    let committed = process.commit(&claim, &finished).or_else(|_| process.commit(&claim, &finished));
    assert_eq!(committed.unwrap(), Committed::Published, "{before:?}, call {number}");
    let was_lost = store.interruption.lock().unwrap().take().is_none();
    assert_eq!(world.done(0).sha256, finished.sha256);
    let bad = world.store.read(&world.manifest.output_names(0).1).unwrap();
    assert_eq!(bad.unwrap(), LATE_BAD_ROWS.as_bytes(), "{before:?}, call {number}");
    assert!(matches!(process.next().unwrap(), Next::Complete));
    was_lost
}

#[test]
fn lost_answers_cost_no_output() {
    for make in [World::new as fn(usize) -> World, World::on_disk] {
        for before in [Before::Nothing, Before::CutOutput, Before::CutAndRecorded] {
            if matches!(before, Before::CutAndRecorded) && !make(1).store.shares_scratch() {
                continue;
            }
            let calls = (0..200).take_while(|number| lose_answer(&make(1), before, *number)).count();
            assert!((8..200).contains(&calls), "{before:?}: {calls} calls");
        }
    }
}
