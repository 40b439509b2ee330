//! What can be asked of any loaded model, whatever its task.

use super::executor::Executor;
use super::workload::Workload;
use super::{QueueStats, RequestContext};
use crate::error::Result;
use crate::plan::Plan;
use sconce_hub::Files;
use sconce_ops::{Counted, Ladder};
use sconce_text::{TextToken, Truncate};
use std::ops::Deref;
use std::sync::Arc;

/// A loaded model, whatever its task.
pub trait Loaded {
    /// The model itself.
    #[doc(hidden)]
    fn model(&self) -> &ModelInfo;
    /// How the requests of this handle are treated.
    #[doc(hidden)]
    fn settings(&mut self) -> &mut RequestSettings;

    /// The same model for another request: what is asked of it ends when `context` is cancelled or late. Cheap; requests of all
    /// contexts run in common batches.
    fn with_context(&self, context: &RequestContext) -> Self
    where
        Self: Clone,
    {
        let mut other = self.clone();
        other.settings().context = context.clone();
        other
    }
    /// The same model with another way to treat texts that are longer than it can take. Cheap. Language models refuse such texts
    /// and sequence-to-sequence models cut their ends, whatever is set here.
    fn with_truncation(&self, truncate: Truncate) -> Self
    where
        Self: Clone,
    {
        let mut other = self.clone();
        other.settings().truncate = truncate;
        other
    }

    /// What was planned before loading.
    fn plan(&self) -> &Plan {
        &self.model().plan
    }
    /// Where the files came from.
    fn files(&self) -> &Files {
        &self.model().files
    }
    /// What really ran since loading, by op, device, dtype and rung.
    fn counts(&self) -> Vec<(Counted, u64)> {
        self.model().ladder.counts()
    }
    /// The most bytes that tensors held at once since loading, weights included.
    fn peak_bytes(&self) -> u64 {
        self.model().ladder.ledger.peak()
    }
    /// What waits for the model, and what it ran last.
    fn queue(&self) -> QueueStats {
        (self.model().queue)()
    }
    /// The tokens of a text and where in it they come from, uncut; with those that begin and end a text if `special`.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        self.model().codec.tokenize(text, special)
    }
    /// The text of tokens; without special tokens if `skip_special`.
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.model().codec.detokenize(ids, skip_special)
    }
}

/// How the requests of a handle are treated.
#[derive(Clone, Debug, Default)]
pub struct RequestSettings {
    pub(crate) context: RequestContext,
    pub(crate) truncate: Truncate,
}

/// Turns texts into tokens and back.
pub(crate) trait Codec: Send + Sync {
    /// See [`Loaded::tokenize`].
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>>;
    /// See [`Loaded::detokenize`].
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String>;
}

/// What [`Loaded`] tells, whatever the kind of model.
pub struct ModelInfo {
    pub(crate) plan: Plan,
    pub(crate) files: Files,
    pub(crate) ladder: Arc<Ladder>,
    pub(crate) codec: Arc<dyn Codec>,
    pub(crate) queue: Box<dyn Fn() -> QueueStats + Send + Sync>,
}

/// A model on its device, with what was read of its files. Handles share it; the last to go takes the model along.
pub(crate) struct LoadedModel<W: Workload, T> {
    pub(crate) info: ModelInfo,
    pub(crate) layout: W::Layout,
    pub(crate) spec: W::Spec,
    /// The tokenizer, and what else the files say of text.
    pub(crate) text: Arc<T>,
    pub(crate) executor: Executor<W>,
}

impl<W: Workload, T> Deref for LoadedModel<W, T> {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        &self.info
    }
}
