//! Running jobs by the ids that clients gave them. An id may be used twice; `/cancel` cancels all
//! jobs with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Running jobs.
#[derive(Default)]
pub(super) struct Jobs(Mutex<HashMap<String, Vec<Arc<Notify>>>>);

/// A running job; it ends on drop.
pub(super) struct Job {
    id: String,
    jobs: Arc<super::Member>,
    /// Notified when the job is cancelled.
    pub(super) cancelled: Arc<Notify>,
}

impl Jobs {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels all jobs with this id; returns their number.
    pub(super) fn cancel(&self, id: &str) -> usize {
        let jobs = self.all().get(id).cloned().unwrap_or_default();
        // `notify_one` stores the notification if the job does not wait for it yet.
        jobs.iter().for_each(|job| job.notify_one());
        jobs.len()
    }

    /// Number of running jobs.
    pub(super) fn len(&self) -> usize {
        self.all().values().map(Vec::len).sum()
    }
}

impl Job {
    pub(super) fn begin(member: &Arc<super::Member>, id: &str) -> Job {
        let cancelled = Arc::new(Notify::new());
        member.jobs.all().entry(id.into()).or_default().push(cancelled.clone());
        Job { id: id.into(), jobs: member.clone(), cancelled }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut all = self.jobs.jobs.all();
        let Some(same) = all.get_mut(&self.id) else { return };
        same.retain(|job| !Arc::ptr_eq(job, &self.cancelled));
        if same.is_empty() {
            all.remove(&self.id);
        }
    }
}
