//! One thread owns a device; everyone else sends it work.

use crate::{Error, Result};
use rayon::ThreadPool;
use sconce_ops::{Device, Ladder, threads};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

type Job<M> = Box<dyn FnOnce(&M) + Send>;

/// The thread that owns a device and the model on it. When dropped it does what it was sent, and ends; the drop waits for that.
pub(crate) struct Owner<M: 'static> {
    device: Device,
    pool: Arc<ThreadPool>,
    jobs: Option<Mutex<Sender<Job<M>>>>,
    thread: Option<JoinHandle<()>>,
}

impl<M> Owner<M> {
    /// Starts the thread, which enters `ladder` and makes the model itself, so that all work on the device is one thread's.
    ///
    /// It brings its own pool of helpers for CPU kernels and is a member of it: if kernels ran in the caller's pool, callers
    /// that wait for them from inside that pool would wait for themselves.
    pub(crate) fn start(
        device: Device,
        ladder: Arc<Ladder>,
        make: impl FnOnce() -> Result<M> + Send + 'static,
    ) -> Result<Owner<M>> {
        Self::start_with(device, ladder, make, |_| false)
    }

    /// The same for a model that has work of its own: `turn` does a piece of it, between any two that are sent, and says whether
    /// there was one. Where there is none it is asked again behind the next work that is sent; see [`Owner::wake`].
    pub(crate) fn start_with(
        device: Device,
        ladder: Arc<Ladder>,
        make: impl FnOnce() -> Result<M> + Send + 'static,
        turn: impl Fn(&M) -> bool + Send + 'static,
    ) -> Result<Owner<M>> {
        let (jobs, inbox) = channel::<Job<M>>();
        let (ready, started) = channel();
        let body = move || {
            if device == Device::Cpu {
                threads::lead();
            }
            let _here = ladder.enter();
            let model = match catch_unwind(AssertUnwindSafe(make)) {
                Ok(Ok(model)) => {
                    let _ = ready.send(Ok(()));
                    model
                }
                Ok(Err(e)) => return drop(ready.send(Err(e))),
                Err(panic) => return drop(ready.send(Err(Error::Panicked { device, why: words(&*panic) }))),
            };
            serve(&inbox, &model, turn);
        };
        let failed =
            |e: &dyn std::fmt::Display| Error::Stopped { device, why: format!("it could not be started: {e}") };
        let pool = rayon::ThreadPoolBuilder::new()
            .thread_name(move |i| format!("sconce {device} {i}"))
            .num_threads(threads::count())
            .build()
            .map_err(|e| failed(&e))?;
        let pool = Arc::new(pool);
        let own = pool.clone();
        let thread = std::thread::Builder::new()
            .name(format!("sconce {device}"))
            .spawn(move || own.install(body))
            .map_err(|e| failed(&e))?;
        started.recv().unwrap_or_else(|_| Err(Error::Stopped { device, why: "it ended while loading".into() }))?;
        Ok(Owner { device, pool, jobs: Some(Mutex::new(jobs)), thread: Some(thread) })
    }

    /// Runs `f` on the owner's thread and waits for its answer. A panic in it fails this call alone.
    pub(crate) fn call<R: Send + 'static>(&self, f: impl FnOnce(&M) -> Result<R> + Send + 'static) -> Result<R> {
        let (answer, answered) = channel();
        let device = self.device;
        self.send(Box::new(move |model| {
            let result = catch_unwind(AssertUnwindSafe(|| f(model)))
                .unwrap_or_else(|panic| Err(Error::Panicked { device, why: words(&*panic) }));
            // Nobody waits any more if the caller was cancelled.
            let _ = answer.send(result);
        }))?;
        answered.recv().map_err(|_| self.gone())?
    }

    /// Has `f` run on the owner's thread, and does not wait for it. A panic in it ends it alone.
    pub(crate) fn post(&self, f: impl FnOnce(&M) + Send + 'static) -> Result<()> {
        self.send(Box::new(move |model| {
            let _ = catch_unwind(AssertUnwindSafe(|| f(model)));
        }))
    }

    /// Has the thread look whether there is a turn to do.
    pub(crate) fn wake(&self) -> Result<()> {
        self.send(Box::new(|_| ()))
    }

    fn send(&self, job: Job<M>) -> Result<()> {
        let jobs = self.jobs.as_ref().ok_or_else(|| self.gone())?;
        jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job).map_err(|_| self.gone())
    }

    /// What is told to those who wait in vain.
    pub(crate) fn gone(&self) -> Error {
        Error::Stopped { device: self.device, why: "no reason given".into() }
    }
}

impl<M> Drop for Owner<M> {
    fn drop(&mut self) {
        // Closing the channel ends the loop; the model must be gone before its device is.
        self.jobs = None;
        // Work that held the last handle lets go of it on the thread itself, which cannot wait for its own end.
        if let Some(thread) = self.thread.take().filter(|_| self.pool.current_thread_index().is_none()) {
            let _ = thread.join();
        }
    }
}

fn serve<M>(inbox: &Receiver<Job<M>>, model: &M, turn: impl Fn(&M) -> bool) {
    let mut is_busy = false;
    loop {
        // Where there is a turn to do, what was sent is not waited for; nor does it keep turns from being done.
        let job = if is_busy { inbox.try_recv() } else { inbox.recv().map_err(|_| TryRecvError::Disconnected) };
        match job {
            Ok(job) => job(model),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if is_busy => {}
            Err(TryRecvError::Disconnected) => return,
        }
        is_busy = turn(model);
    }
}

pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_one_thread_and_a_panic_fails_alone() {
        let ladder = Arc::new(Ladder::default());
        let owner = Owner::start(Device::Cpu, ladder, || Ok(std::thread::current().id())).unwrap();
        let here = |model: &std::thread::ThreadId| Ok((*model, std::thread::current().id()));
        let (made, ran) = owner.call(here).unwrap();
        assert_eq!(made, ran);
        assert_ne!(ran, std::thread::current().id());
        let poisoned = owner.call(|_| -> Result<()> { panic!("boom") });
        assert!(poisoned.unwrap_err().to_string().contains("boom"));
        assert_eq!(owner.call(here).unwrap().1, ran);
    }

    #[test]
    fn callers_inside_a_pool_do_not_wait_for_themselves() {
        use rayon::prelude::*;
        let owner = Owner::start(Device::Cpu, Arc::default(), || Ok(())).unwrap();
        // More callers than threads, each waiting for work that is itself parallel.
        let sum = |n: u64| owner.call(move |()| Ok((0..n).into_par_iter().map(|i| i % 7).sum::<u64>()));
        let sums: Result<Vec<u64>> = (0..64u64).into_par_iter().map(|i| sum(10_000 + i)).collect();
        assert_eq!(sums.unwrap().len(), 64);
    }

    #[test]
    fn the_last_handle_may_go_on_the_thread_itself() {
        struct Model(std::sync::mpsc::Sender<()>);
        impl Drop for Model {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (gone, seen) = channel();
        let owner = Arc::new(Owner::start(Device::Cpu, Arc::default(), || Ok(Model(gone))).unwrap());
        let (go, wait) = channel::<()>();
        let last = owner.clone();
        owner
            .post(move |_| {
                let _ = wait.recv();
                drop(last);
            })
            .unwrap();
        drop(owner);
        go.send(()).unwrap();
        seen.recv_timeout(std::time::Duration::from_secs(60)).expect("the thread ends, and its model with it");
    }

    #[test]
    fn a_failure_to_load_is_the_answer() {
        let fail = || -> Result<()> { Err(Error::Input("no".into())) };
        assert!(matches!(Owner::start(Device::Cpu, Arc::default(), fail), Err(Error::Input(_))));
        let panic = || -> Result<()> { panic!("boom") };
        assert!(matches!(Owner::start(Device::Cpu, Arc::default(), panic), Err(Error::Panicked { .. })));
    }
}
