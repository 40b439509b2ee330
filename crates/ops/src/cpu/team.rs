//! The thread team (thread pool) that runs the tasks of an op.
//!
//! A process has one team: the calling thread and workers that wait for it. Workers spin for some
//! tens of microseconds before they sleep, because in a forward pass the next op follows at once,
//! and waking a thread takes longer than many ops on a short text. An op that finds the team busy,
//! with another model or because a task calls an op, runs its tasks on its own thread: two ops
//! never occupy more threads than the team has. Work that belongs to no op is a job: see
//! [`super::jobs`].
//!
//! Each member starts with its own share of consecutive tasks and helps the others when its share
//! is done (work stealing). Ops put the tasks of the first rows first, so that from op to op a core
//! finds its rows in its own cache.
#![allow(unsafe_code, reason = "workers borrow the caller's closure, which waits for them before it returns")]

use super::jobs::Jobs;
use crate::cpu::rows::Output;
use crate::{Result, threads};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::{iter, ptr};

/// How often a worker checks for work before it sleeps: some tens of microseconds.
const SPINS: usize = 1000;

/// Flag in [`Team::gate`]: workers may enter. The lower bits count those inside.
const OPEN: usize = 1 << (usize::BITS - 1);

pub(super) type Task<'a> = dyn Fn(usize) + Sync + 'a;

struct Team {
    /// Locked by the thread whose tasks run.
    owner: Mutex<()>,
    /// Counts the ops that were handed out.
    turn: AtomicUsize,
    gate: AtomicUsize,
    /// The tasks, which live as long as the owner waits, and their number.
    job: UnsafeCell<Option<(*const Task<'static>, usize)>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    workers: OnceLock<Vec<Worker>>,
    /// One for the owner and one for each worker.
    shares: Vec<Share>,
    jobs: Jobs,
}

/// The first task of a share that no thread has taken, on a cache line of its own.
#[repr(align(64))]
struct Share(AtomicUsize);

struct Worker {
    thread: Thread,
    sleeps: &'static AtomicBool,
}

// SAFETY: the owner writes `job` while the gate is closed and no worker is inside; only workers
// that passed the gate read it.
unsafe impl Sync for Team {}
// SAFETY: the pointer is to a closure that is Sync.
unsafe impl Send for Team {}

/// The team of this process; null before the first op, and again after a fork. No lock guards it,
/// because a lock that another thread holds during a fork stays locked in the child.
static TEAM: AtomicPtr<Team> = AtomicPtr::new(ptr::null_mut());

/// The team, with the number of threads of [`threads::count`].
fn team() -> &'static Team {
    // SAFETY: the pointer is null or that of a team that is never freed.
    unsafe { TEAM.load(Acquire).as_ref() }.unwrap_or_else(start)
}

/// Starts the team. Of several threads that call this at once, one starts it. Until its workers
/// exist, callers run their tasks alone.
#[cold]
fn start() -> &'static Team {
    let members = threads::count().max(1);
    let new = Box::into_raw(Box::new(Team {
        owner: Mutex::new(()),
        turn: AtomicUsize::new(0),
        gate: AtomicUsize::new(0),
        job: UnsafeCell::new(None),
        panic: Mutex::new(None),
        workers: OnceLock::new(),
        shares: iter::repeat_with(|| Share(AtomicUsize::new(0))).take(members).collect(),
        jobs: Jobs::default(),
    }));
    if let Err(first) = TEAM.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
        // SAFETY: no other thread has seen the new team; the first one is never freed.
        unsafe {
            drop(Box::from_raw(new));
            return &*first;
        }
    }
    // SAFETY: the team is never freed.
    let team: &'static Team = unsafe { &*new };
    let spawn = |i: usize| {
        let sleeps: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let name = format!("sconce-cpu-{i}");
        // If the system refuses more threads, those that started do the work.
        let started = thread::Builder::new().name(name).spawn(move || team.begin(i, sleeps)).ok()?;
        Some(Worker { thread: started.thread().clone(), sleeps })
    };
    let _ = team.workers.set((1..members).filter_map(spawn).collect());
    team
}

/// Leaves the team behind, whose workers do not exist in a forked process. The next op starts
/// another one.
pub(crate) fn after_fork() {
    TEAM.store(ptr::null_mut(), Release);
}

/// Runs tasks 0 to `tasks` − 1, on the team if it is free. Panics after all tasks have finished if
/// one of them panicked.
pub(crate) fn each(tasks: usize, run: impl Fn(usize) + Sync) {
    let team = team();
    let workers = team.workers.get().map_or(&[][..], |w| w);
    let owner = if tasks > 1 && !workers.is_empty() { team.owner.try_lock().ok() } else { None };
    let Some(_owner) = owner else { return (0..tasks).for_each(run) };
    let task: &Task<'_> = &run;
    // SAFETY: the lifetime is erased only until this function has seen all workers leave, which it
    // waits for even if a task panics. The gate is closed and no worker is inside, so nobody reads
    // the job.
    unsafe { *team.job.get() = Some((std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task), tasks)) };
    for (i, share) in team.shares.iter().enumerate() {
        share.0.store(team.first(i, tasks), Relaxed);
    }
    team.gate.store(OPEN, Release);
    team.turn.fetch_add(1, SeqCst);
    team.wake();
    let result = catch_unwind(AssertUnwindSafe(|| team.work(0, task, tasks)));
    team.gate.fetch_and(!OPEN, AcqRel);
    let mut spins = 0;
    while team.gate.load(Acquire) != 0 {
        spins += 1;
        // A worker that was preempted may need this core.
        if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
    }
    let worker_panic = team.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = result.err().or(worker_panic) {
        drop(_owner);
        resume_unwind(panic);
    }
}

/// [`each`] for tasks that may fail; returns the first error found.
pub(crate) fn try_each(tasks: usize, run: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failed = Mutex::new(None);
    each(tasks, |task| {
        if let Err(e) = run(task) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// [`each`] for chunks of `values`; each has `chunk` elements, except for the last.
pub(crate) fn each_chunk_mut<T: Send>(values: &mut [T], chunk: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    in_chunks(values, chunk, run, |tasks, run| each(tasks, run));
}

/// Runs the tasks of a job, which belongs to no op, with the workers that no op needs. Panics after
/// all tasks have finished if one of them panicked.
pub(crate) fn job(tasks: usize, run: &Task<'_>) {
    let team = team();
    if tasks > 1 && team.workers.get().is_some_and(|workers| !workers.is_empty()) {
        team.jobs.run(tasks, run, || team.wake());
    } else {
        (0..tasks).for_each(run);
    }
}

/// Calls `each` with one task per chunk of `values`.
pub(crate) fn in_chunks<T: Send>(
    values: &mut [T],
    chunk: usize,
    run: impl Fn(usize, &mut [T]) + Sync,
    each: impl FnOnce(usize, &Task<'_>),
) {
    let (len, out) = (values.len(), Output::over(values));
    each(len.div_ceil(chunk), &|i| {
        let start = i * chunk;
        // SAFETY: the chunk lies in the values and belongs to this task alone.
        run(i, unsafe { out.part(start, chunk.min(len - start)) });
    });
}

impl Team {
    /// Wakes the workers that sleep.
    fn wake(&self) {
        let workers = self.workers.get().map_or(&[][..], |w| w);
        workers.iter().filter(|w| w.sleeps.load(SeqCst)).for_each(|w| w.thread.unpark());
    }

    /// The first task of a member's share.
    fn first(&self, member: usize, tasks: usize) -> usize {
        member * tasks / self.shares.len()
    }

    /// Runs a member's own share, and then the rest of the others' shares.
    fn work(&self, member: usize, run: &Task<'_>, tasks: usize) {
        let members = self.shares.len();
        for share in (member..members).chain(0..member) {
            let end = self.first(share + 1, tasks);
            loop {
                let task = self.shares[share].0.fetch_add(1, Relaxed);
                if task >= end {
                    break;
                }
                run(task);
            }
        }
    }

    /// Main function of a worker thread, pinned to its core.
    fn begin(&self, i: usize, sleeps: &AtomicBool) {
        threads::keep_to(i);
        self.serve(i, sleeps);
    }

    /// Waits for ops and runs their tasks, and jobs in between.
    fn serve(&self, member: usize, sleeps: &AtomicBool) {
        let mut last_turn = 0;
        loop {
            let mut spins = 0;
            while self.turn.load(Acquire) == last_turn {
                if self.jobs.any() {
                    self.jobs.help(|| self.turn.load(Acquire) != last_turn);
                    spins = 0;
                    continue;
                }
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                    continue;
                }
                // The worker sets `sleeps` before its last check, and the owner checks `sleeps`
                // after it has published its op: one of the two sees the other.
                sleeps.store(true, SeqCst);
                if self.turn.load(SeqCst) == last_turn && !self.jobs.any() {
                    thread::park();
                }
                sleeps.store(false, SeqCst);
            }
            last_turn = self.turn.load(Acquire);
            let enter = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
            if self.gate.fetch_update(AcqRel, Relaxed, enter).is_err() {
                continue;
            }
            // SAFETY: the gate was open, so the job stays valid until the worker has left.
            if let Some((run, tasks)) = unsafe { *self.job.get() } {
                // SAFETY: as above; the owner waits.
                let done = catch_unwind(AssertUnwindSafe(|| self.work(member, unsafe { &*run }, tasks)));
                if let Err(panic) = done {
                    self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                }
            }
            self.gate.fetch_sub(1, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_once_with_concurrent_and_nested_callers() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for tasks in [0, 1, 2, 3, 17, 1000] {
                        for _ in 0..200 {
                            let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
                            each(tasks, |i| {
                                // A task that calls `each` runs those tasks itself.
                                each(2, |j| {
                                    sum.fetch_add((i + j) as u64, Relaxed);
                                });
                                count.fetch_add(1, Relaxed);
                            });
                            let n = tasks as u64;
                            assert_eq!((count.into_inner(), sum.into_inner()), (n, n * n.saturating_sub(1) + n));
                        }
                    }
                });
            }
        });
    }

    /// Here the old workers still exist; `bindings/python` tests a process that was really forked.
    #[test]
    fn a_new_team_starts_after_a_fork() {
        let sum = |tasks: usize| {
            let sum = AtomicU64::new(0);
            each(tasks, |i| {
                sum.fetch_add(i as u64, Relaxed);
            });
            sum.into_inner()
        };
        let before: *const Team = team();
        assert_eq!(sum(100), 4950);
        after_fork();
        assert_eq!(sum(100), 4950);
        assert!(!ptr::eq(before, team()), "the team of the parent is used");
        // Another test may have started it, and may not be done.
        while team().workers.get().is_none() {
            thread::yield_now();
        }
        assert_eq!(team().workers.get().map(Vec::len), Some(threads::count() - 1));
    }

    #[test]
    fn panic_reaches_the_caller_and_the_team_continues() {
        for bad in [0, 63] {
            let failed = catch_unwind(|| each(64, |i| assert!(i != bad, "boom")));
            assert!(failed.is_err());
        }
        assert!(try_each(64, |i| if i == 5 { Err(crate::Error::Phantom) } else { Ok(()) }).is_err());
        assert!(try_each(64, |_| Ok(())).is_ok());
    }
}
