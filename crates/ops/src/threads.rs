//! The threads of the CPU: how many, whether each keeps to a core of its own, and work that they do
//! together.
//!
//! One team a process (`cpu/team.rs`) runs ops, and between them [`for_each`], [`map`] and
//! [`for_each_chunk_mut`] of whoever calls. Candle and tokenizers bring rayon, whose pools have as
//! many threads; nothing else uses them. The number is settled when it is first asked for, because
//! a team cannot grow; who wants another number says so before.

use crate::cpu::team;
use crate::{Device, Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settled {
    count: usize,
    /// Where each thread stays, if they are bound; as many as there are threads or more.
    cores: Option<Vec<usize>>,
}

static SETTLED: OnceLock<Settled> = OnceLock::new();

/// The most that anybody could mean.
const MOST: usize = 4096;

/// Settles the number of threads, by default one for each physical core that this process may use,
/// and with `pin` binds those of the team to a core each, and who first [leads](lead) it. To be
/// called before the first op; afterwards only what is settled already is accepted.
pub fn set(count: Option<usize>, pin: bool) -> Result<()> {
    let refused = |why: String| Error::Device { device: Device::Cpu, why };
    let count = match count {
        Some(n @ 1..=MOST) => n,
        Some(n) => return Err(refused(format!("{n} threads: from 1 to {MOST} will do"))),
        None => by_default(),
    };
    let cores = if pin { Some(places(count).map_err(refused)?) } else { None };
    let wanted = Settled { count, cores };
    let settled = SETTLED.get_or_init(|| wanted.clone());
    if *settled != wanted {
        let (is, bound) = (settled.count, if settled.cores.is_some() { ", each bound to a core" } else { "" });
        let why = format!("the number of threads is settled before the first op, and here it is {is} already{bound}");
        return Err(refused(why));
    }
    // Rayon's global pool, which tokenizers uses. Where somebody has built it before us, or this is
    // the second call, it stays as it is.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count).build_global();
    Ok(())
}

/// The number of threads, which is settled now if it was not.
pub fn count() -> usize {
    settled().count
}

/// Runs `f(0)` to `f(tasks − 1)`, on this thread and those of the team that no op has work for. It
/// may be called from any thread, by several at once and from within such a task. If a task panics,
/// this panics when all tasks have ended.
pub fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    team::job(tasks, &f);
}

/// The same for what `f(0)` to `f(tasks − 1)` return, in that order.
pub fn map<R: Send>(tasks: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut all: Vec<Option<R>> = std::iter::repeat_with(|| None).take(tasks).collect();
    for_each_chunk_mut(&mut all, 1, |i, one| one[0] = Some(f(i)));
    all.into_iter().flatten().collect()
}

/// The same for the parts of `values`, each `chunk` long but for the last, which `f` is given with
/// its number.
///
/// # Panics
/// If `chunk` is 0, and if `f` panics.
pub fn for_each_chunk_mut<T: Send>(values: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    team::in_chunks(values, chunk, f, team::job);
}

/// Runs `f`, which computes with Candle on the CPU, in a rayon pool of its own. Rayon runs what it
/// is given in the pool of the calling thread, and would wait for ever where all threads of that
/// pool wait for this one.
pub(crate) fn with_candle<R: Send>(f: impl FnOnce() -> R + Send) -> Result<R> {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    let build = || {
        let name = |i| format!("sconce-candle-{i}");
        rayon::ThreadPoolBuilder::new().thread_name(name).num_threads(count()).build().ok()
    };
    let refused = || Error::Device { device: Device::Cpu, why: "the system gives no threads for Candle's ops".into() };
    Ok(POOL.get_or_init(build).as_ref().ok_or_else(refused)?.install(f))
}

fn settled() -> &'static Settled {
    SETTLED.get_or_init(|| Settled { count: by_default(), cores: None })
}

/// Binds the calling thread, which is the `i`-th of the team, where threads are bound.
pub(crate) fn keep_to(i: usize) {
    if let Some(core) = settled().cores.as_ref().and_then(|cores| cores.get(i)) {
        // A core that was taken away since is a loss of speed, not of answers.
        let _ = bind(*core);
    }
}

/// Binds the calling thread, which hands tasks to the team, where threads are bound. The first to
/// come has the first core; those of further models are left to the system, for whoever finds the
/// team taken works alone, and should do so where there is room.
pub fn lead() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if settled().cores.is_some() && !TAKEN.swap(true, Relaxed) {
        keep_to(0);
    }
}

/// `RAYON_NUM_THREADS` where that is set; else one a physical core: two threads that share one have
/// the same units to multiply with.
fn by_default() -> usize {
    let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|n| (1..=MOST).contains(n));
    set.unwrap_or_else(|| {
        // Less than there are cores where a container's share of time is less.
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        physical().map_or(most, |cores| cores.len().clamp(1, most))
    })
}

/// A core for each of `count` threads: physical ones first, then those that share one with another.
#[cfg(target_os = "linux")]
fn places(count: usize) -> Result<Vec<usize>, String> {
    let allowed = allowed().ok_or("the system does not tell which cores this process may use")?;
    let mut all = physical().unwrap_or_default();
    all.extend(allowed.iter().filter(|core| !all.contains(core)).copied().collect::<Vec<_>>());
    match all.len() {
        n if n < count => Err(format!("{count} threads cannot be bound: this process may use {n} cores")),
        _ => Ok(all),
    }
}

#[cfg(not(target_os = "linux"))]
fn places(_: usize) -> Result<Vec<usize>, String> {
    Err("threads can be bound to cores on Linux only; leave that to this system".into())
}

/// One of the threads of each physical core that this process may use, where the system tells.
#[cfg(target_os = "linux")]
fn physical() -> Option<Vec<usize>> {
    let siblings = |core: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        std::fs::read_to_string(path).ok().map(|list| list.trim().to_string())
    };
    let mut seen = std::collections::HashSet::new();
    let mut cores = Vec::new();
    for core in allowed()? {
        if seen.insert(siblings(core)?) {
            cores.push(core);
        }
    }
    Some(cores)
}

#[cfg(not(target_os = "linux"))]
fn physical() -> Option<Vec<usize>> {
    None
}

/// Before any thread of ours is bound, and so narrower than the process: asked once.
#[cfg(target_os = "linux")]
fn allowed() -> Option<Vec<usize>> {
    static ALLOWED: OnceLock<Option<Vec<usize>>> = OnceLock::new();
    let ask = || {
        let set = rustix::thread::sched_getaffinity(None).ok()?;
        Some((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    };
    ALLOWED.get_or_init(ask).clone()
}

#[cfg(target_os = "linux")]
fn bind(core: usize) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| e.to_string())
}

#[cfg(not(target_os = "linux"))]
fn bind(_: usize) -> Result<(), String> {
    Err("not on this system".into())
}
