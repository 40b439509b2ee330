//! How far a model has been loaded: what the engine tells its `Progress`, kept for whoever asks.

use sconce_api::admin;
use sconce_engine::hub::Progress;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far one model has been loaded.
#[derive(Debug, Default)]
pub struct Gauge(Mutex<Now>);

#[derive(Debug, Default)]
struct Now {
    model: String,
    stage: String,
    done: u64,
    bytes: u64,
}

impl Gauge {
    pub(crate) fn new(model: &str) -> Gauge {
        Gauge(Mutex::new(Now { model: model.to_owned(), stage: "starting".into(), ..Now::default() }))
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stage(&self, stage: &str) {
        let mut now = self.now();
        (now.stage, now.done, now.bytes) = (stage.to_owned(), 0, 0);
    }

    /// As clients are told it.
    pub fn told(&self) -> admin::Progress {
        let now = self.now();
        let percent = (now.bytes > 0).then(|| (now.done.min(now.bytes) as f64 / now.bytes as f64 * 100.0) as f32);
        admin::Progress { model: now.model.clone(), stage: now.stage.clone(), percent }
    }
}

impl Progress for Gauge {
    fn note(&self, line: &str) {
        tracing::info!(model = self.now().model, "{line}");
    }

    fn begin(&self, what: &str, bytes: u64) {
        let mut now = self.now();
        (now.stage, now.done, now.bytes) = (what.to_owned(), 0, bytes);
    }

    fn advance(&self, bytes: u64) {
        let mut now = self.now();
        now.done = now.done.saturating_add(bytes);
    }

    fn end(&self) {
        self.stage("loading");
    }
}
