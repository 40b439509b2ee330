//! Jobs by the ids that clients gave them: running ones, and those of `/v1/jobs` whose events
//! nobody has collected yet.
//!
//! Running jobs may share an id; a cancellation ends all of them. Of the jobs that wait for a
//! client, each has its own id. Their number and their lifetimes are limited.

use super::Member;
use super::execute::EventReceiver;
use crate::error::{Fault, FaultKind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Most jobs whose events nobody has collected yet.
pub(super) const MAX_WAITING: usize = 256;

/// The jobs of a worker.
#[derive(Default)]
pub(super) struct Jobs(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    running: HashMap<String, Vec<Arc<Notify>>>,
    waiting: HashMap<String, WaitingJob>,
    /// How many jobs have waited so far; the number of the last of them.
    created: u64,
}

/// A job whose events nobody has collected yet.
struct WaitingJob {
    events: EventReceiver,
    number: u64,
    expiry: AbortHandle,
}

/// A running job; it ends on drop.
pub(super) struct Job {
    id: String,
    member: Arc<Member>,
    /// Notified when the job is cancelled.
    pub(super) cancelled: Arc<Notify>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels all jobs with this id; returns their number.
    pub(super) fn cancel(&self, id: &str) -> usize {
        let jobs = self.lock().running.get(id).cloned().unwrap_or_default();
        // `notify_one` stores the notification if the job does not wait for it yet.
        jobs.iter().for_each(|job| job.notify_one());
        jobs.len()
    }

    /// Number of running jobs.
    pub(super) fn running(&self) -> usize {
        self.lock().running.values().map(Vec::len).sum()
    }

    /// Number of jobs whose events nobody has collected yet.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Fails if a job with this id cannot wait for a client now.
    pub(super) fn check_waiting(&self, id: &str) -> Result<(), Fault> {
        self.lock().check_waiting(id)
    }

    /// Takes the events of a job, which only one client can do.
    pub(super) fn collect(&self, id: &str, lifetime: Duration) -> Result<EventReceiver, Fault> {
        let mut inner = self.lock();
        if let Some(job) = inner.waiting.remove(id) {
            job.expiry.abort();
            return Ok(job.events);
        }
        if inner.running.contains_key(id) {
            let what = format!("the events of the job `{id}` are already being streamed; a job has one stream");
            return Err(Fault::new(FaultKind::Conflict, what));
        }
        let seconds = lifetime.as_secs_f64();
        let what = format!(
            "there is no job `{id}`: it was never created, its events were streamed already, or nobody streamed them \
             within {seconds} s; create it with POST /v1/jobs"
        );
        Err(Fault::new(FaultKind::NoRoute, what))
    }

    /// Drops the events of a job that nobody has collected, which cancels it.
    fn expire(&self, id: &str, number: u64) -> bool {
        let mut inner = self.lock();
        let is_same = inner.waiting.get(id).is_some_and(|job| job.number == number);
        is_same && inner.waiting.remove(id).is_some()
    }
}

impl Inner {
    fn check_waiting(&self, id: &str) -> Result<(), Fault> {
        if self.waiting.contains_key(id) {
            let what = format!("a job `{id}` waits for GET /v1/jobs/{{id}}/stream; choose another `job_id`");
            return Err(Fault::new(FaultKind::Conflict, what).at("job_id"));
        }
        if self.waiting.len() >= MAX_WAITING {
            let what = format!(
                "{MAX_WAITING} jobs wait for GET /v1/jobs/{{id}}/stream, which is the limit; stream or await them, \
                 and retry"
            );
            return Err(Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1)));
        }
        Ok(())
    }
}

impl Member {
    /// Keeps the events of a job until a client collects them, at most for the jobs' lifetime. If
    /// this fails, the events are dropped, which cancels the job.
    pub(super) fn wait_for_client(self: &Arc<Self>, id: &str, events: EventReceiver) -> Result<(), Fault> {
        let mut inner = self.jobs.lock();
        inner.check_waiting(id)?;
        inner.created += 1;
        let (number, lifetime) = (inner.created, self.membership.job_lifetime);
        let (member, job_id) = (self.clone(), id.to_owned());
        let expire = async move {
            tokio::time::sleep(lifetime).await;
            if member.jobs.expire(&job_id, number) {
                tracing::warn!(job = job_id, "cancelled: nobody collected its events within {lifetime:?}");
            }
        };
        let expiry = tokio::spawn(expire).abort_handle();
        inner.waiting.insert(id.into(), WaitingJob { events, number, expiry });
        Ok(())
    }
}

impl Job {
    pub(super) fn begin(member: &Arc<Member>, id: &str) -> Job {
        let cancelled = Arc::new(Notify::new());
        member.jobs.lock().running.entry(id.into()).or_default().push(cancelled.clone());
        Job { id: id.into(), member: member.clone(), cancelled }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut inner = self.member.jobs.lock();
        let Some(same) = inner.running.get_mut(&self.id) else { return };
        same.retain(|job| !Arc::ptr_eq(job, &self.cancelled));
        if same.is_empty() {
            inner.running.remove(&self.id);
        }
    }
}
