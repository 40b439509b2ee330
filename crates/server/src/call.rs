//! What every request to a model goes through: a lease, a permit, a deadline, and one record of how it went.
//!
//! A call is cancelled when it is dropped, which is what happens to it when a client goes away: axum drops the handler's future.
//! The permit and the lease are given back when the work itself has ended, so that what still runs is still counted. An answer that
//! streams keeps its call with whatever makes the events, not with whatever sends them: a client that reads slowly then holds
//! nothing but its own events.

use crate::answer::{Answer, Compute};
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::house::Lease;
use crate::served::Served;
use crate::trail::Trail;
use sconce_engine::RequestContext;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// What a request was about, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens read.
    pub tokens: usize,
    /// Characters read.
    pub characters: usize,
}

/// Work for one request. Dropping it cancels what is not done.
pub struct Call {
    inner: Arc<Inner>,
    deadline: Option<Instant>,
}

struct Inner {
    app: Arc<App>,
    method: &'static str,
    trail: Arc<Trail>,
    caller: RequestContext,
    outcome: Mutex<Outcome>,
    lease: Lease,
    _permit: OwnedSemaphorePermit,
}

/// How it went.
enum Outcome {
    Open,
    Done(Usage),
    Failed(FaultKind),
}

impl Call {
    pub(crate) fn new(
        app: &Arc<App>,
        method: &'static str,
        trail: Arc<Trail>,
        lease: Lease,
        permit: OwnedSemaphorePermit,
    ) -> Call {
        let deadline = app.config.request_timeout.map(|timeout| trail.begun + timeout);
        let outcome = Mutex::new(Outcome::Open);
        app.metrics.begin(method);
        let caller = RequestContext::new(deadline);
        let inner = Inner { app: app.clone(), method, trail, caller, outcome, lease, _permit: permit };
        Call { inner: Arc::new(inner), deadline }
    }

    /// The model.
    pub fn served(&self) -> &Served {
        self.inner.lease.served()
    }

    /// On whose behalf the engine is to work.
    pub fn caller(&self) -> &RequestContext {
        &self.inner.caller
    }

    /// Until when.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs blocking work on a thread for such, and waits for it, at most until the deadline.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Served, &RequestContext) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let inner = self.inner.clone();
        let task = tokio::task::spawn_blocking(move || {
            if inner.caller.is_cancelled() {
                return Err(Fault::new(FaultKind::Cancelled, "nobody waits for it any more"));
            }
            work(inner.lease.served(), &inner.caller)
        });
        let ended = match self.deadline {
            None => task.await,
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), task).await {
                Ok(ended) => ended,
                Err(_) => {
                    self.inner.caller.cancel();
                    return Err(self.failed(self.late()));
                }
            },
        };
        let result = ended.unwrap_or_else(|e| {
            // The panic has been logged where it happened; a client gets no more than that there was one.
            tracing::error!(method = self.inner.method, "a request's work panicked: {e}");
            Err(Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed"))
        });
        result.map_err(|fault| self.failed(fault))
    }

    fn late(&self) -> Fault {
        let allowed = self.inner.app.config.request_timeout.unwrap_or_default().as_secs_f64();
        Fault::new(FaultKind::Late, format!("it took longer than {allowed} s, which is the most (--request-timeout)"))
    }

    /// Records that it failed, unless something was recorded before.
    pub fn failed(&self, fault: Fault) -> Fault {
        let mut outcome = self.inner.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*outcome, Outcome::Open) {
            *outcome = Outcome::Failed(fault.kind);
        }
        fault
    }

    /// Records that it went well.
    pub fn done(&self, usage: Usage) {
        *self.inner.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Outcome::Done(usage);
    }

    /// Records that it went well, and tells what it cost.
    pub fn answer<T>(&self, body: T, usage: Usage) -> Answer<T> {
        self.done(usage);
        let (total, times) = (self.inner.trail.begun.elapsed(), self.inner.caller.times());
        Answer { body, compute: Compute { usage, total, times } }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.inner.caller.cancel();
    }
}

impl Drop for Inner {
    /// Once, whatever happened.
    fn drop(&mut self) {
        let outcome = std::mem::replace(self.outcome.get_mut().unwrap_or_else(PoisonError::into_inner), Outcome::Open);
        let (took, times) = (self.trail.begun.elapsed(), self.caller.times());
        let usage = match outcome {
            Outcome::Done(usage) => Some(usage),
            _ => None,
        };
        self.trail.traced(|span| span.worked(&self.lease.served().id, usage, times));
        let metrics = &self.app.metrics;
        match outcome {
            Outcome::Done(usage) => metrics.done(self.method, usage, took, times),
            Outcome::Failed(kind) => metrics.failed(self.method, kind),
            Outcome::Open => metrics.failed(self.method, FaultKind::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::house::{House, ModelSpec};
    use crate::served::Want;
    use crate::stop::Stop;
    use axum::http::HeaderMap;
    use sconce_engine::{LoadOptions, hub};
    use std::time::Duration;

    async fn app(config: Config) -> (Arc<App>, tempfile::TempDir) {
        let dir = sconce_testkit::materialize("st-prompts");
        let options = LoadOptions::new(hub::Options::new(dir.path().join("hub"), dir.path().join("cache")));
        let house = House::new(None, options.clone());
        house.furnish(ModelSpec::new(dir.path().to_str().unwrap(), options)).unwrap();
        house.settled().await;
        (App::new(config, house, Stop::default()), dir)
    }

    #[tokio::test]
    async fn work_that_panics_fails_alone_and_gives_everything_back() {
        let (app, _dir) = app(Config { max_concurrent: 1, ..Config::default() }).await;
        let trail = Trail::new(&HeaderMap::new());
        let call = app.call("test", &trail, None, Want::Embed).unwrap();
        assert_eq!(app.call("test", &trail, None, Want::Embed).map(drop).unwrap_err().kind, FaultKind::Overloaded);
        let fault = call.run(|_, _| -> Result<(), Fault> { panic!("poisoned") }).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Internal);
        assert!(!fault.message.contains("poisoned"), "a client is not told what is inside");
        drop(call);
        assert_eq!((app.free_permits(), app.house.list()[0].leases), (1, 0));
        let call = app.call("test", &trail, None, Want::Embed).unwrap();
        assert_eq!(call.run(|served, _| Ok(served.id.len())).await.unwrap(), call.served().id.len());
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_cancels_its_work_and_is_held_until_that_has_ended() {
        let (app, _dir) = app(Config::default()).await;
        let trail = Trail::new(&HeaderMap::new());
        let call = app.call("test", &trail, None, Want::Embed).unwrap();
        let (begun, told) = std::sync::mpsc::channel();
        let work = call.run(move |_, caller| {
            begun.send(()).unwrap();
            while !caller.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        });
        let mut work = Box::pin(work);
        tokio::select! {
            _ = &mut work => panic!("it has no end of its own"),
            () = async { while told.try_recv().is_err() { tokio::time::sleep(Duration::from_millis(1)).await } } => {}
        }
        drop(work);
        drop(call);
        assert_eq!(app.house.list()[0].leases, 1, "the work still runs");
        let begun = Instant::now();
        while app.house.list()[0].leases > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(app.free_permits(), app.config.max_concurrent);
        assert!(app.metrics.text(&app).contains("te_request_failure{err=\"cancelled\",method=\"test\"} 1"));
    }

    #[tokio::test]
    async fn work_that_is_not_done_in_time_is_told_so() {
        let patience = Some(Duration::from_millis(30));
        let (app, _dir) = app(Config { request_timeout: patience, ..Config::default() }).await;
        let call = app.call("test", &Trail::new(&HeaderMap::new()), None, Want::Embed).unwrap();
        let fault = call
            .run(|_, caller| {
                while !caller.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            })
            .await
            .unwrap_err();
        assert_eq!(fault.kind, FaultKind::Late);
    }
}
