//! The interface of any loaded model, whatever its task.

use super::executor::Executor;
use super::workload::Workload;
use super::{QueueStats, RequestContext};
use crate::error::Result;
use crate::graph::{GraphPlan, Provider};
use crate::plan::Plan;
use sconce_hub::Files;
use sconce_ops::{Counted, DType, Ladder};
use sconce_text::{TextToken, Truncate};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// A loaded model, whatever its task.
pub trait Loaded {
    /// The model behind this handle.
    #[doc(hidden)]
    fn model(&self) -> &ModelInfo;
    /// The settings for requests of this handle.
    #[doc(hidden)]
    fn settings(&mut self) -> &mut RequestSettings;

    /// A handle to the same model whose requests end when `context` is cancelled or misses its
    /// deadline. Cheap; requests of all contexts share batches.
    fn with_context(&self, context: &RequestContext) -> Self
    where
        Self: Clone,
    {
        let mut other = self.clone();
        other.settings().context = context.clone();
        other
    }
    /// A handle to the same model with another truncation of texts that are too long. Cheap.
    /// Ignored by language models, which refuse such texts, and by sequence-to-sequence models,
    /// which truncate at the end.
    fn with_truncation(&self, truncate: Truncate) -> Self
    where
        Self: Clone,
    {
        let mut other = self.clone();
        other.settings().truncate = truncate;
        other
    }

    /// A handle to the same model that truncates texts at `max` tokens, if that is less than the
    /// model can take; `None`: at the model's own limit. Cheap. Ignored by language models and by
    /// sequence-to-sequence models.
    fn with_max_tokens(&self, max: Option<usize>) -> Self
    where
        Self: Clone,
    {
        let mut other = self.clone();
        other.settings().max_tokens = max;
        other
    }

    /// The plan made before loading.
    fn plan(&self) -> &Plan {
        &self.model().plan
    }
    /// The files of the model and where they came from.
    fn files(&self) -> &Files {
        &self.model().files
    }
    /// The op calls that ran since loading, by op, device, dtype and rung.
    fn counts(&self) -> Vec<(Counted, u64)> {
        self.model().ladder.counts()
    }
    /// What ran since loading: the op calls of [`Loaded::counts`], and the nodes of a graph that
    /// another engine runs.
    fn op_calls(&self) -> Vec<OpCalls> {
        let ours = self.counts().into_iter().map(|(counted, calls)| OpCalls {
            op: counted.op.into(),
            device: counted.device.to_string(),
            dtype: counted.dtype.to_string(),
            rung: counted.rung.to_string(),
            calls,
        });
        ours.chain(self.plan().graph.iter().flat_map(OpCalls::of_graph)).collect()
    }
    /// The most bytes that tensors held at once since loading, weights included.
    fn peak_bytes(&self) -> u64 {
        self.model().ladder.ledger.peak()
    }
    /// The queue of the model, and its last batch.
    fn queue(&self) -> QueueStats {
        (self.model().queue)()
    }
    /// The tokens of a text, not truncated, with their offsets; with the special tokens that begin
    /// and end a text if `special`.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        self.model().codec.tokenize(text, special)
    }
    /// How many tokens a text has, not truncated and without special tokens.
    fn token_count(&self, text: &str) -> Result<usize> {
        self.model().codec.token_count(text)
    }
    /// The text of tokens; without special tokens if `skip_special`.
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.model().codec.detokenize(ids, skip_special)
    }
}

/// Calls of an op since loading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpCalls {
    /// The op, or the operator of a graph's nodes.
    pub op: String,
    /// The device that ran it.
    pub device: String,
    /// The dtype of activations.
    pub dtype: String,
    /// The rung that took it; `onnx` for a node that ONNX Runtime ran on the device that was asked
    /// for, `host` for one that it ran on the CPU instead.
    pub rung: String,
    /// How often it ran.
    pub calls: u64,
}

impl OpCalls {
    /// The nodes of all files of a graph, as often as they ran; equal ones once, with their sum.
    fn of_graph(graph: &GraphPlan) -> Vec<OpCalls> {
        let mut sums: BTreeMap<(&str, bool), u64> = BTreeMap::new();
        for file in &graph.files {
            for node in file.nodes() {
                let is_host = graph.provider != Provider::Cpu && node.provider == "CPUExecutionProvider";
                *sums.entry((&node.operator, is_host)).or_default() += node.nodes * file.calls();
            }
        }
        let row = |((operator, is_host), calls): ((&str, bool), u64)| OpCalls {
            op: operator.into(),
            device: if is_host { Provider::Cpu } else { graph.provider }.to_string(),
            dtype: DType::F32.to_string(),
            rung: if is_host { "host" } else { "onnx" }.into(),
            calls,
        };
        sums.into_iter().filter(|(_, calls)| *calls > 0).map(row).collect()
    }
}

/// Settings for the requests of a handle.
#[derive(Clone, Debug, Default)]
pub struct RequestSettings {
    pub(crate) context: RequestContext,
    pub(crate) truncate: Truncate,
    /// The longest text, in tokens; `None`: what the model can take.
    pub(crate) max_tokens: Option<usize>,
}

/// Tokenizer and detokenizer.
pub(crate) trait Codec: Send + Sync {
    /// See [`Loaded::tokenize`].
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>>;
    /// See [`Loaded::token_count`].
    fn token_count(&self, text: &str) -> Result<usize> {
        Ok(self.tokenize(text, false)?.len())
    }
    /// See [`Loaded::detokenize`].
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String>;
}

/// What [`Loaded`] reports, for any kind of model.
pub struct ModelInfo {
    pub(crate) plan: Plan,
    pub(crate) files: Files,
    pub(crate) ladder: Arc<Ladder>,
    pub(crate) codec: Arc<dyn Codec>,
    pub(crate) queue: Box<dyn Fn() -> QueueStats + Send + Sync>,
}

/// A model on its device, with what was read from its files. Handles share it; dropping the last
/// one unloads the model.
pub(crate) struct LoadedModel<W: Workload, T> {
    pub(crate) info: ModelInfo,
    pub(crate) layout: W::Layout,
    pub(crate) spec: W::Spec,
    /// The tokenizer and other text settings from the files.
    pub(crate) text: Arc<T>,
    pub(crate) executor: Executor<W>,
}

impl<W: Workload, T> Deref for LoadedModel<W, T> {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        &self.info
    }
}
