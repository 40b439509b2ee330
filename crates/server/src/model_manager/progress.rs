//! Load progress of a model: records the engine's `Progress` callbacks for status requests.

use sconce_api::admin;
use sconce_engine::hub::Progress;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Load progress of one model.
#[derive(Debug, Default)]
pub struct LoadProgress(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    model: String,
    stage: String,
    done: u64,
    bytes: u64,
}

impl LoadProgress {
    pub(crate) fn new(model: &str) -> LoadProgress {
        LoadProgress(Mutex::new(Inner { model: model.to_owned(), stage: "starting".into(), ..Inner::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stage(&self, stage: &str) {
        let mut inner = self.lock();
        (inner.stage, inner.done, inner.bytes) = (stage.to_owned(), 0, 0);
    }

    /// The progress as the API reports it.
    pub fn snapshot(&self) -> admin::Progress {
        let inner = self.lock();
        let percent =
            (inner.bytes > 0).then(|| (inner.done.min(inner.bytes) as f64 / inner.bytes as f64 * 100.0) as f32);
        admin::Progress { model: inner.model.clone(), stage: inner.stage.clone(), percent }
    }
}

impl Progress for LoadProgress {
    fn note(&self, line: &str) {
        tracing::info!(model = self.lock().model, "{line}");
    }

    fn begin(&self, what: &str, bytes: u64) {
        let mut inner = self.lock();
        (inner.stage, inner.done, inner.bytes) = (what.to_owned(), 0, bytes);
    }

    fn advance(&self, bytes: u64) {
        let mut inner = self.lock();
        inner.done = inner.done.saturating_add(bytes);
    }

    fn end(&self) {
        self.stage("loading");
    }
}
