//! Counts the layers of a model while its weights are read. The layer of a tensor is in its name.

use sconce_ops::{Mapped, Raw, Result, Store, Stored};
use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of lists of layers, in the files of all architectures:
/// `model.layers.0.mlp.up_proj.weight`.
const LAYER_LISTS: [&str; 6] = ["layers", "layer", "h", "blk", "block", "blocks"];

/// Layers whose weights have been read, and all layers of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerCount {
    pub(crate) loaded: usize,
    pub(crate) total: usize,
}

/// Reports the layers of one model while it loads.
#[derive(Clone)]
pub(crate) struct LayerProgress(Arc<Mutex<Inner>>);

struct Inner {
    /// `None` when loading has ended.
    reports: Option<Sender<LayerCount>>,
    /// Layers of which at least one tensor was read.
    started: BTreeSet<String>,
    total: usize,
}

impl LayerProgress {
    /// `reports` receives the count whenever it changes, and is closed at the end.
    pub(crate) fn new(reports: Sender<LayerCount>) -> LayerProgress {
        let inner = Inner { reports: Some(reports), started: BTreeSet::new(), total: 0 };
        LayerProgress(Arc::new(Mutex::new(inner)))
    }

    /// The store, whose reads are counted from now on. `unread` are the tensors that the plan does
    /// not need.
    pub(crate) fn observe(&self, store: Arc<dyn Store>, unread: &[String]) -> Arc<dyn Store> {
        let unread: BTreeSet<&str> = unread.iter().map(String::as_str).collect();
        let names = store.names();
        let needed = names.iter().filter(|name| !unread.contains(name.as_str()));
        self.lock().total = needed.filter_map(|name| layer(name)).collect::<BTreeSet<&str>>().len();
        Arc::new(ObservedStore { store, progress: self.clone() })
    }

    /// All weights have been read.
    pub(crate) fn finish(&self) {
        let mut inner = self.lock();
        let total = inner.total;
        inner.report(total);
        inner.reports = None;
    }

    /// Models read one layer after the other, so a layer is complete when the next one begins.
    fn read(&self, name: &str) {
        let Some(layer) = layer(name) else { return };
        let mut inner = self.lock();
        if !inner.started.contains(layer) {
            let complete = inner.started.len();
            inner.started.insert(layer.to_owned());
            inner.report(complete);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn report(&self, loaded: usize) {
        if let Some(reports) = self.reports.as_ref().filter(|_| self.total > 0) {
            // The receiver outlives the loading.
            let _ = reports.send(LayerCount { loaded: loaded.min(self.total), total: self.total });
        }
    }
}

/// The part of a tensor's name that identifies its layer: `model.layers.0`.
fn layer(name: &str) -> Option<&str> {
    let (mut end, mut in_list) = (0, false);
    for part in name.split('.') {
        end += part.len();
        if in_list && part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() {
            return Some(&name[..end]);
        }
        in_list = LAYER_LISTS.contains(&part);
        end += 1;
    }
    None
}

/// A store whose reads are counted.
struct ObservedStore {
    store: Arc<dyn Store>,
    progress: LayerProgress,
}

impl Store for ObservedStore {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        self.progress.read(name);
        self.store.get(name)
    }

    fn shape(&self, name: &str) -> Result<Option<(Stored, Vec<usize>)>> {
        self.store.shape(name)
    }

    fn names(&self) -> Vec<String> {
        self.store.names()
    }

    fn file(&self, name: &str) -> Option<Mapped> {
        self.store.file(name)
    }

    fn taken(&self, name: &str) {
        self.store.taken(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn layer_of_a_tensor_is_in_its_name() {
        for (name, want) in [
            ("model.layers.11.mlp.up_proj.weight", Some("model.layers.11")),
            ("bert.encoder.layer.0.output.dense.bias", Some("bert.encoder.layer.0")),
            ("encoder.block.3.layer.1.DenseReluDense.wi.weight", Some("encoder.block.3")),
            ("h.2.attn.c_attn.weight", Some("h.2")),
            ("blk.7.attn_q.weight", Some("blk.7")),
            ("vision_model.encoder.layers.1.mlp.fc1.weight", Some("vision_model.encoder.layers.1")),
            ("classifier.0.weight", None),
            ("model.layers.weight", None),
            ("model.norm.weight", None),
            ("layers.", None),
            ("", None),
        ] {
            assert_eq!(layer(name), want, "{name}");
        }
    }

    struct Names(Vec<String>);

    impl Store for Names {
        fn get(&self, _: &str) -> Result<Option<Raw<'_>>> {
            Ok(None)
        }
        fn names(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    #[test]
    fn layers_count_when_the_next_begins_and_at_the_end() {
        let names = ["embed.weight", "layers.0.a", "layers.0.b", "layers.1.a", "decoder.layers.0.a", "head.weight"];
        let (sender, receiver) = channel();
        let store: Arc<dyn Store> = Arc::new(Names(names.map(String::from).to_vec()));
        let progress = LayerProgress::new(sender);
        let store = progress.observe(store, &["decoder.layers.0.a".into()]);
        let counts = || receiver.try_iter().map(|c| (c.loaded, c.total)).collect::<Vec<_>>();
        store.get("embed.weight").unwrap();
        assert_eq!(counts(), []);
        store.get("layers.0.a").unwrap();
        store.get("layers.0.b").unwrap();
        assert_eq!(counts(), [(0, 2)]);
        store.get("layers.1.a").unwrap();
        store.get("head.weight").unwrap();
        assert_eq!(counts(), [(1, 2)]);
        progress.finish();
        assert_eq!(counts(), [(2, 2)]);
        assert!(receiver.recv().is_err(), "closed, although the store is still there");
        drop(store);
    }
}
