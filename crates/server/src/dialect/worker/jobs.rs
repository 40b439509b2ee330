//! Jobs under way, by the names that their clients gave them. A name may be given twice; whoever cancels it means all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Jobs under way.
#[derive(Default)]
pub(super) struct Jobs(Mutex<HashMap<String, Vec<Arc<Notify>>>>);

/// A job; dropped, it is over.
pub(super) struct Job {
    name: String,
    jobs: Arc<super::Member>,
    /// Told when it is to end.
    pub(super) cancelled: Arc<Notify>,
}

impl Jobs {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends those of this name; how many there were.
    pub(super) fn cancel(&self, name: &str) -> usize {
        let told = self.all().get(name).cloned().unwrap_or_default();
        // Kept until it is heard, if nobody listens yet.
        told.iter().for_each(|job| job.notify_one());
        told.len()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all().values().map(Vec::len).sum()
    }
}

impl Job {
    pub(super) fn begin(member: &Arc<super::Member>, name: &str) -> Job {
        let cancelled = Arc::new(Notify::new());
        member.jobs.all().entry(name.into()).or_default().push(cancelled.clone());
        Job { name: name.into(), jobs: member.clone(), cancelled }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut all = self.jobs.jobs.all();
        let Some(same) = all.get_mut(&self.name) else { return };
        same.retain(|job| !Arc::ptr_eq(job, &self.cancelled));
        if same.is_empty() {
            all.remove(&self.name);
        }
    }
}
