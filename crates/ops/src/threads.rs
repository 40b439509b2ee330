//! CPU threads: their number, pinning to cores, and parallel loops.
//!
//! One thread team per process (`cpu/team.rs`) runs ops, and between them the loops [`for_each`],
//! [`map`] and [`for_each_chunk_mut`] of any caller. Only Candle and tokenizers use rayon, whose
//! pools have the same number of threads. The number of threads is fixed at its first use, because
//! a team cannot grow; call [`set`] before that to choose another number. A process that was forked
//! calls [`after_fork`].
#![allow(unsafe_code, reason = "pools are static, and a forked process must replace them without a lock")]

use crate::cpu::team;
use crate::{Device, Error, Result};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// The thread settings, fixed at first use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadConfig {
    count: usize,
    /// The core of each thread if threads are pinned; at least as many as there are threads.
    cores: Option<Vec<usize>>,
}

static CONFIG: OnceLock<ThreadConfig> = OnceLock::new();

/// Upper limit of the thread count, against typing errors.
const MAX_THREADS: usize = 4096;

/// Fixes the number of threads, by default one per physical core that this process may use. With
/// `pin`, pins each thread of the team and the first thread that [leads](lead) it to its own core.
/// Call this before the first op; afterwards only the same settings are accepted.
pub fn set(count: Option<usize>, pin: bool) -> Result<()> {
    let refused = |why: String| Error::Device { device: Device::Cpu, why };
    let count = match count {
        Some(n @ 1..=MAX_THREADS) => n,
        Some(n) => return Err(refused(format!("{n} threads: choose from 1 to {MAX_THREADS}"))),
        None => default_count(),
    };
    let cores = if pin { Some(cores_for(count).map_err(refused)?) } else { None };
    let wanted = ThreadConfig { count, cores };
    let config = CONFIG.get_or_init(|| wanted.clone());
    if *config != wanted {
        let (is, bound) = (config.count, if config.cores.is_some() { ", each bound to a core" } else { "" });
        let why = format!("the number of threads is fixed before the first op, and it is {is} already{bound}");
        return Err(refused(why));
    }
    // Rayon's global pool, which tokenizers uses. If it exists already, or on a second call, it
    // stays as it is.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(count).build_global();
    Ok(())
}

/// The number of threads. Fixes it if it is not fixed yet.
pub fn count() -> usize {
    config().count
}

/// Runs `f(0)` to `f(tasks − 1)`, on the calling thread and on threads of the team that no op
/// occupies. Any thread may call it, several at once and from within a task. If a task panics, this
/// panics after all tasks have ended.
pub fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    team::job(tasks, &f);
}

/// Like [`for_each`], and collects what `f(0)` to `f(tasks − 1)` return, in that order.
pub fn map<R: Send>(tasks: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut all: Vec<Option<R>> = std::iter::repeat_with(|| None).take(tasks).collect();
    for_each_chunk_mut(&mut all, 1, |i, one| one[0] = Some(f(i)));
    all.into_iter().flatten().collect()
}

/// Like [`for_each`], over chunks of `values` with `chunk` elements (the last may be shorter). `f`
/// gets the index of the chunk and the chunk.
///
/// # Panics
/// If `chunk` is 0, and if `f` panics.
pub fn for_each_chunk_mut<T: Send>(values: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    team::in_chunks(values, chunk, f, team::job);
}

/// The rayon pool for Candle's ops; null before the first of them, and again after a fork.
static CANDLE_POOL: AtomicPtr<rayon::ThreadPool> = AtomicPtr::new(ptr::null_mut());

/// Whether a thread that leads the team is pinned.
static HAS_LEAD: AtomicBool = AtomicBool::new(false);

/// Runs `f`, which computes with Candle on the CPU, in a separate rayon pool. Rayon runs work in
/// the pool of the calling thread, and would deadlock if all threads of that pool waited for this
/// call.
pub(crate) fn with_candle<R: Send>(f: impl FnOnce() -> R + Send) -> Result<R> {
    // SAFETY: the pointer is null or that of a pool that is never freed.
    match unsafe { CANDLE_POOL.load(Acquire).as_ref() } {
        Some(pool) => Ok(pool.install(f)),
        None => Ok(start_candle_pool()?.install(f)),
    }
}

#[cold]
fn start_candle_pool() -> Result<&'static rayon::ThreadPool> {
    let name = |i| format!("sconce-candle-{i}");
    let pool = rayon::ThreadPoolBuilder::new().thread_name(name).num_threads(count()).build();
    let why = |e| format!("cannot start the threads for Candle's ops: {e}");
    let pool = Box::into_raw(Box::new(pool.map_err(|e| Error::Device { device: Device::Cpu, why: why(e) })?));
    match CANDLE_POOL.compare_exchange(ptr::null_mut(), pool, AcqRel, Acquire) {
        // SAFETY: the pool is never freed.
        Ok(_) => Ok(unsafe { &*pool }),
        // SAFETY: another thread was first; nobody has seen this pool, and the first is never
        // freed.
        Err(first) => unsafe {
            drop(Box::from_raw(pool));
            Ok(&*first)
        },
    }
}

/// Call this in the child after a `fork`, which copies the memory of a process but none of its
/// threads: the next op starts new ones. Loaded models stay unusable in the child, because the
/// threads that owned their devices are gone, and must not be dropped there.
///
/// Candle also has threads of its own, for element-wise operations on 65,536 elements and more.
/// They cannot be replaced: the child would wait for them forever. A program that forks sets the
/// environment variable `CANDLE_NUM_THREADS` to 1 before the first op, so that Candle starts none.
pub fn after_fork() {
    team::after_fork();
    CANDLE_POOL.store(ptr::null_mut(), Relaxed);
    HAS_LEAD.store(false, Relaxed);
}

fn config() -> &'static ThreadConfig {
    CONFIG.get_or_init(|| ThreadConfig { count: default_count(), cores: None })
}

/// Pins the calling thread, number `i` of the team, if threads are pinned.
pub(crate) fn keep_to(i: usize) {
    if let Some(core) = config().cores.as_ref().and_then(|cores| cores.get(i)) {
        // If the core has been taken away since, only speed is lost.
        let _ = bind(*core);
    }
}

/// Pins the calling thread, which will hand tasks to the team, if threads are pinned. The first
/// caller gets the first core. Callers of further models are not pinned: a caller that finds the
/// team busy works alone, and the system should run it where a core is idle.
pub fn lead() {
    if config().cores.is_some() && !HAS_LEAD.swap(true, Relaxed) {
        keep_to(0);
    }
}

/// `RAYON_NUM_THREADS` if it is set; else one thread per physical core, because two hyperthreads of
/// a core share its multipliers.
fn default_count() -> usize {
    let set =
        std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok()).filter(|n| (1..=MAX_THREADS).contains(n));
    set.unwrap_or_else(|| {
        // A container's CPU quota may be lower than the number of cores.
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        physical().map_or(most, |cores| cores.len().clamp(1, most))
    })
}

/// A core for each of `count` threads: physical cores first, then their hyperthreads.
#[cfg(target_os = "linux")]
fn cores_for(count: usize) -> Result<Vec<usize>, String> {
    let allowed = allowed().ok_or("the system does not report which cores this process may use")?;
    let mut all = physical().unwrap_or_default();
    all.extend(allowed.iter().filter(|core| !all.contains(core)).copied().collect::<Vec<_>>());
    match all.len() {
        n if n < count => Err(format!("{count} threads cannot be bound to cores: this process may use {n} cores")),
        _ => Ok(all),
    }
}

#[cfg(not(target_os = "linux"))]
fn cores_for(_: usize) -> Result<Vec<usize>, String> {
    Err("threads can be bound to cores on Linux only".into())
}

/// One hyperthread of each physical core that this process may use, if the system reports them.
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

/// Read once, before any of our threads is pinned: a pinned thread would report its own core only.
#[cfg(target_os = "linux")]
fn allowed() -> Option<Vec<usize>> {
    static ALLOWED: OnceLock<Option<Vec<usize>>> = OnceLock::new();
    let read = || {
        let set = rustix::thread::sched_getaffinity(None).ok()?;
        Some((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    };
    ALLOWED.get_or_init(read).clone()
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
