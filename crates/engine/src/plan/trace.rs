//! Plans a model: runs its own load and forward on phantoms and reads the ledger.

use super::Plan;
use crate::dtype::Formats;
use crate::error::Result;
use sconce_ops::{Device, KvCacheFormat, Ladder, Place, Policy, Step, replay};
use std::path::PathBuf;
use std::sync::Arc;

/// A plan in progress: the op calls and bytes traced so far.
pub(crate) struct Trace {
    ladder: Arc<Ladder>,
    /// The phantom place that the model is loaded into.
    pub(crate) place: Place,
    device: Device,
    steps: Vec<Step>,
    /// Bytes that are live after loading.
    pub(crate) weights: u64,
    /// The part of `weights` that is a copy in half precision.
    pub(crate) weight_copies: u64,
    /// Bytes of the KV cache, which outlives a pass.
    cache: u64,
    /// The most bytes that a pass held besides weights and KV cache.
    workspace: u64,
    /// Bytes for passes that are captured as CUDA graphs.
    graph_bytes: u64,
}

/// The parts of a plan that a trace cannot measure.
pub(crate) struct PlanDetails {
    pub(crate) formats: Formats,
    pub(crate) cache_format: Option<KvCacheFormat>,
    pub(crate) cache_tokens: usize,
    pub(crate) batch_tokens: usize,
    pub(crate) max_tokens: usize,
    pub(crate) dimension: usize,
    pub(crate) vocabulary: usize,
    pub(crate) most_sequences: usize,
    pub(crate) root: PathBuf,
    pub(crate) unread: Vec<String>,
}

impl Trace {
    /// A trace on a device that need not be in this machine.
    pub(crate) fn new(device: Device, policy: &Policy) -> Trace {
        let (ladder, place) = (Ladder::new(policy.clone()), Place::phantom(device));
        let steps = Vec::new();
        Trace { ladder, place, device, steps, weights: 0, weight_copies: 0, cache: 0, workspace: 0, graph_bytes: 0 }
    }

    /// Loads the model. The bytes that stay live are its weights.
    pub(crate) fn load<T>(&mut self, load: impl FnOnce(&Place) -> Result<T>) -> Result<T> {
        let (loaded, steps) = self.ladder.trace(|| load(&self.place));
        self.steps = steps;
        self.weights = self.ladder.ledger.live();
        loaded
    }

    /// Sets how many bytes of every later pass are the KV cache.
    pub(crate) fn set_cache(&mut self, bytes: u64) {
        self.cache = bytes;
    }

    /// Traces a pass and reserves workspace for it. Returns its op calls.
    pub(crate) fn pass(&mut self, run: impl FnOnce() -> Result<()>) -> Result<Vec<Step>> {
        let (bytes, steps) = self.measure(run)?;
        self.workspace = self.workspace.max(bytes);
        Ok(steps)
    }

    /// Traces a pass that will be captured as a CUDA graph, where the device has them: captured
    /// passes have buffers of their own.
    pub(crate) fn captured_pass(&mut self, run: impl FnOnce() -> Result<()>) -> Result<()> {
        if replay::most_tokens(self.device).is_some() {
            self.graph_bytes = replay::reserved_bytes(self.measure(run)?.0);
        }
        Ok(())
    }

    fn measure(&self, run: impl FnOnce() -> Result<()>) -> Result<(u64, Vec<Step>)> {
        self.ladder.ledger.reset_peak();
        let (ran, steps) = self.ladder.trace(run);
        ran?;
        Ok((self.ladder.ledger.peak().saturating_sub(self.weights.saturating_add(self.cache)), steps))
    }

    /// The plan: loading, then a pass of `steps`. `copied` bytes of results are copied to the host
    /// besides.
    pub(crate) fn plan(self, steps: Vec<Step>, copied: u64, details: PlanDetails) -> Plan {
        let PlanDetails {
            formats: Formats { dtype, weight_format, why, .. },
            cache_format,
            cache_tokens,
            batch_tokens,
            max_tokens,
            ..
        } = details;
        let PlanDetails { dimension, vocabulary, most_sequences, root, unread, .. } = details;
        let (device, weights, cache, graph_bytes) = (self.device, self.weights, self.cache, self.graph_bytes);
        let workspace = self.workspace.saturating_add(graph_bytes).saturating_add(copied);
        let steps = self.steps.into_iter().chain(steps).collect();
        Plan {
            device,
            dtype,
            weight_format,
            dtype_reason: why,
            steps,
            weights,
            weight_copies: self.weight_copies,
            cache,
            cache_format,
            cache_tokens,
            workspace,
            graph_bytes,
            batch_tokens,
            max_tokens,
            dimension,
            vocabulary,
            most_sequences,
            root,
            unread,
            graph: None,
        }
    }
}
