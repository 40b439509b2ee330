//! The path of every request to a model: a lease, a concurrency permit, a deadline, and one
//! recorded outcome.
//!
//! Dropping a call cancels it. That happens when a client disconnects: axum drops the handler's
//! future. The permit and the lease are released when the work itself ends, so that running work
//! stays counted. In a streaming response the producer of the events holds the call, not the task
//! that sends them: a slow reader holds only its own events.

use crate::answer::{Answer, Compute};
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::model_manager::Lease;
use crate::served_model::ServedModel;
use sconce_engine::RequestContext;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// Size of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Input tokens.
    pub tokens: usize,
    /// Input characters.
    pub characters: usize,
}

/// Work for one request. Dropping it cancels unfinished work.
pub struct Call {
    inner: Arc<Inner>,
    deadline: Option<Instant>,
}

struct Inner {
    app: Arc<App>,
    method: &'static str,
    context: Arc<HttpContext>,
    caller: RequestContext,
    outcome: Mutex<Outcome>,
    lease: Lease,
    _permit: OwnedSemaphorePermit,
}

/// Outcome of a call.
enum Outcome {
    Pending,
    Done(Usage),
    Failed(FaultKind),
}

impl Call {
    pub(crate) fn new(
        app: &Arc<App>,
        method: &'static str,
        context: Arc<HttpContext>,
        lease: Lease,
        permit: OwnedSemaphorePermit,
    ) -> Call {
        let deadline = app.config.request_timeout.map(|timeout| context.started_at + timeout);
        let outcome = Mutex::new(Outcome::Pending);
        app.metrics.begin(method);
        let caller = RequestContext::new(deadline);
        let inner = Inner { app: app.clone(), method, context, caller, outcome, lease, _permit: permit };
        Call { inner: Arc::new(inner), deadline }
    }

    /// The leased model.
    pub fn served(&self) -> &ServedModel {
        self.inner.lease.served()
    }

    /// The engine's context of this request: cancellation, deadline and times.
    pub fn caller(&self) -> &RequestContext {
        &self.inner.caller
    }

    /// The deadline (--request-timeout).
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs `work` on a blocking thread and waits for it, at most until the deadline.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServedModel, &RequestContext) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let inner = self.inner.clone();
        let task = tokio::task::spawn_blocking(move || {
            if inner.caller.is_cancelled() {
                return Err(Fault::new(FaultKind::Cancelled, "the request was cancelled"));
            }
            work(inner.lease.served(), &inner.caller)
        });
        let joined = match self.deadline {
            None => task.await,
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), task).await {
                Ok(joined) => joined,
                Err(_) => {
                    self.inner.caller.cancel();
                    return Err(self.failed(self.timeout_fault()));
                }
            },
        };
        let result = joined.unwrap_or_else(|e| {
            // The panic hook logged the details; the client gets none of them.
            tracing::error!(method = self.inner.method, "a request panicked: {e}");
            Err(Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed"))
        });
        result.map_err(|fault| self.failed(fault))
    }

    fn timeout_fault(&self) -> Fault {
        let allowed = self.inner.app.config.request_timeout.unwrap_or_default().as_secs_f64();
        Fault::new(FaultKind::Timeout, format!("the request took longer than {allowed} s (--request-timeout)"))
    }

    /// Records a failure, unless an outcome was recorded before.
    pub fn failed(&self, fault: Fault) -> Fault {
        let mut outcome = self.inner.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*outcome, Outcome::Pending) {
            *outcome = Outcome::Failed(fault.kind);
        }
        fault
    }

    /// Records success.
    pub fn done(&self, usage: Usage) {
        *self.inner.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Outcome::Done(usage);
    }

    /// Records success and makes the response with its cost.
    pub fn answer<T>(&self, body: T, usage: Usage) -> Answer<T> {
        self.done(usage);
        let (total, times) = (self.inner.context.started_at.elapsed(), self.inner.caller.times());
        Answer { body, compute: Compute { usage, total, times } }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.inner.caller.cancel();
    }
}

impl Drop for Inner {
    /// Records the outcome, exactly once.
    fn drop(&mut self) {
        let outcome =
            std::mem::replace(self.outcome.get_mut().unwrap_or_else(PoisonError::into_inner), Outcome::Pending);
        let (took, times) = (self.context.started_at.elapsed(), self.caller.times());
        let usage = match outcome {
            Outcome::Done(usage) => Some(usage),
            _ => None,
        };
        self.context.with_span(|span| span.record_call(&self.lease.served().id, usage, times));
        let metrics = &self.app.metrics;
        match outcome {
            Outcome::Done(usage) => metrics.done(self.method, usage, took, times),
            Outcome::Failed(kind) => metrics.failed(self.method, kind),
            Outcome::Pending => metrics.failed(self.method, FaultKind::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::model_manager::{ModelManager, ModelSpec};
    use crate::served_model::RequestKind;
    use crate::stop::Stop;
    use axum::http::HeaderMap;
    use sconce_engine::{LoadOptions, hub};
    use sconce_testkit::{wait_until, wait_until_async};
    use std::time::Duration;

    async fn app(config: Config) -> (Arc<App>, tempfile::TempDir) {
        let dir = sconce_testkit::materialize("st-prompts");
        let options = LoadOptions::new(hub::Options::new(dir.path().join("hub"), dir.path().join("cache")));
        let models = ModelManager::new(None, options.clone());
        models.register(ModelSpec::new(dir.path().to_str().unwrap(), options)).unwrap();
        models.settled().await;
        (App::new(config, models, Stop::default()).unwrap(), dir)
    }

    #[tokio::test]
    async fn panicking_call_fails_and_releases_permit_and_lease() {
        let (app, _dir) = app(Config { max_concurrent: 1, ..Config::default() }).await;
        let context = HttpContext::new(&HeaderMap::new());
        let call = app.call("test", &context, None, RequestKind::Embed).unwrap();
        assert_eq!(
            app.call("test", &context, None, RequestKind::Embed).map(drop).unwrap_err().kind,
            FaultKind::Overloaded
        );
        let fault = call.run(|_, _| -> Result<(), Fault> { panic!("poisoned") }).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Internal);
        assert!(!fault.message.contains("poisoned"), "a client must not see the panic message");
        drop(call);
        assert_eq!((app.free_permits(), app.models.list()[0].leases), (1, 0));
        let call = app.call("test", &context, None, RequestKind::Embed).unwrap();
        assert_eq!(call.run(|served, _| Ok(served.id.len())).await.unwrap(), call.served().id.len());
    }

    #[tokio::test]
    async fn dropped_call_cancels_its_work_and_keeps_its_lease_until_the_end() {
        let (app, _dir) = app(Config::default()).await;
        let context = HttpContext::new(&HeaderMap::new());
        let call = app.call("test", &context, None, RequestKind::Embed).unwrap();
        let (sender, started) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = call.run(move |_, caller| {
            sender.send(()).unwrap();
            wait_until("the work is cancelled", || caller.is_cancelled());
            ended.recv().unwrap();
            Ok(())
        });
        let mut work = Box::pin(work);
        tokio::select! {
            _ = &mut work => panic!("the work ends only when cancelled"),
            () = wait_until_async("the work has started", || started.try_recv().is_ok()) => {}
        }
        drop(work);
        drop(call);
        assert_eq!(app.models.list()[0].leases, 1, "the work still runs");
        end.send(()).unwrap();
        wait_until_async("the model is released", || app.models.list()[0].leases == 0).await;
        assert_eq!(app.free_permits(), app.config.max_concurrent);
        assert!(app.metrics.text(&app).contains("te_request_failure{err=\"cancelled\",method=\"test\"} 1"));
    }

    #[tokio::test]
    async fn slow_call_fails_with_timeout() {
        let request_timeout = Some(Duration::from_millis(30));
        let (app, _dir) = app(Config { request_timeout, ..Config::default() }).await;
        let call = app.call("test", &HttpContext::new(&HeaderMap::new()), None, RequestKind::Embed).unwrap();
        let fault = call
            .run(|_, caller| {
                wait_until("the work is cancelled", || caller.is_cancelled());
                Ok(())
            })
            .await
            .unwrap_err();
        assert_eq!(fault.kind, FaultKind::Timeout);
    }
}
