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
    layers: Option<Layers>,
}

/// Layers whose weights have been read, and all layers of the model.
#[derive(Clone, Copy, Debug)]
struct Layers {
    loaded: u64,
    total: u64,
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
        let part = |done: u64, all: u64| (all > 0).then(|| (done.min(all) as f64 / all as f64 * 100.0) as f32);
        let percent = part(inner.done, inner.bytes).or_else(|| inner.layers.and_then(|l| part(l.loaded, l.total)));
        admin::Progress {
            model: inner.model.clone(),
            stage: inner.stage.clone(),
            percent,
            layers_loaded: inner.layers.map(|layers| layers.loaded),
            layers_total: inner.layers.map(|layers| layers.total),
        }
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

    fn layers(&self, loaded: usize, total: usize) {
        self.lock().layers = Some(Layers { loaded: loaded as u64, total: total as u64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reports_bytes_of_a_download_and_layers_of_a_load() {
        let progress = LoadProgress::new("m");
        progress.begin("downloading", 200);
        progress.advance(50);
        let now = progress.snapshot();
        assert_eq!((now.stage.as_str(), now.percent, now.layers_total), ("downloading", Some(25.0), None));
        progress.end();
        assert_eq!(progress.snapshot().percent, None);
        progress.layers(3, 12);
        let now = progress.snapshot();
        let layers = (now.layers_loaded, now.layers_total);
        assert_eq!((now.stage.as_str(), now.percent, layers), ("loading", Some(25.0), (Some(3), Some(12))));
    }
}
