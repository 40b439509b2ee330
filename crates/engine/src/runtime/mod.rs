//! Loads models and runs their requests: one runtime for every kind of model.

mod device_thread;
mod executor;
mod layer_progress;
mod load;
mod loaded;
mod reply;
mod request_context;
mod warmup;
mod workload;

pub(crate) use executor::Executor;
pub(crate) use layer_progress::LayerProgress;
pub(crate) use load::{load, plan};
pub(crate) use loaded::{Codec, LoadedModel, ModelInfo, RequestSettings};
pub use loaded::{Loaded, OpCalls};
pub(crate) use reply::{Reply, Sink};
pub use request_context::{RequestContext, Times};
pub(crate) use workload::{LoadContext, RequestId, Workload};

/// The queue of a model, and its last batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests with at least one item in the queue.
    pub requests: usize,
    /// Tokens in the queue.
    pub tokens: usize,
    /// Sequences of the last batch.
    pub batch_sequences: usize,
    /// Tokens of the last batch.
    pub batch_tokens: usize,
}
