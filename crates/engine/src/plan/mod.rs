//! Plans: which kernels will run where, and how much memory they will take, before any weight is
//! read.

mod size;
mod trace;
mod verdict;

pub use size::Size;
pub(crate) use trace::{PlanDetails, Trace};
pub use verdict::{Verdict, verdict_path};

use crate::error::{Error, Result};
use crate::graph::{GraphPlan, Provider};
use sconce_ops::{DType, Device, KvCacheFormat, Step, WeightFormat};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The least cosine similarity to f32 vectors that `auto` accepts: it chooses the fastest format
/// with at least this bound.
pub const LEAST_AUTO: f64 = 0.999;

/// The least cosine similarity to f32 vectors that tests require of bf16 and f16, and of int8.
const LEAST_HALF: f64 = 0.9998;
const LEAST_BYTES: f64 = 0.995;

// So `auto` chooses only between f32 and bf16: see `DTypeChoice`.
const _: () = assert!(LEAST_HALF >= LEAST_AUTO && LEAST_BYTES < LEAST_AUTO);

/// A plan, with the memory layout of one kind of model.
#[derive(Clone, Debug)]
pub(crate) struct Planned<L> {
    pub(crate) plan: Plan,
    pub(crate) layout: L,
}

/// A model on a device, planned by running its own forward pass on phantoms.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The device planned for.
    pub device: Device,
    /// The format of activations, and of weights unless `weight_format` says otherwise.
    pub dtype: DType,
    /// The storage format of matrices.
    pub weight_format: WeightFormat,
    /// Why it runs in this format.
    pub dtype_reason: String,
    /// Every op call of a forward pass.
    pub steps: Vec<Step>,
    /// Bytes of weights, as packed for the device.
    pub weights: u64,
    /// The part of `weights` that is a copy of quantized weights in half precision, for prompts on
    /// CUDA.
    pub weight_copies: u64,
    /// Bytes of the KV cache, of language models.
    pub cache: u64,
    /// The format of the KV cache.
    pub cache_format: Option<KvCacheFormat>,
    /// Tokens that the KV cache holds, over all sequences.
    pub cache_tokens: usize,
    /// The most bytes that tensors of one batch hold at once. Buffers that the pool keeps between
    /// batches count towards it.
    pub workspace: u64,
    /// The part of `workspace` that is reserved for passes captured as CUDA graphs.
    pub graph_bytes: u64,
    /// Tokens of the planned batch.
    pub batch_tokens: usize,
    /// The longest text, in tokens.
    pub max_tokens: usize,
    /// Dimension of an embedding.
    pub dimension: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// The most sequences in a batch.
    pub most_sequences: usize,
    /// The folder of the encoder's files.
    pub root: PathBuf,
    /// Weights in the files that the model does not read.
    pub unread: Vec<String>,
    /// The part of the model that another engine runs; its nodes are not among `steps`.
    pub graph: Option<GraphPlan>,
}

impl Plan {
    /// The format by its `--dtype` name: that of activations, or `int8`.
    pub fn format(&self) -> String {
        if self.weight_format == WeightFormat::Bytes { "int8".into() } else { self.dtype.to_string() }
    }

    /// The least cosine similarity between an encoder's vectors and those in f32, as tests check
    /// for MiniLM; `None` for f32.
    pub fn bound(&self) -> Option<f64> {
        match (self.weight_format, self.dtype) {
            (WeightFormat::Bytes, _) => Some(LEAST_BYTES),
            (_, DType::F32) => None,
            _ => Some(LEAST_HALF),
        }
    }

    /// Weights, KV cache and workspace together.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.workspace).saturating_add(self.cache)
    }

    /// The op calls that no allowed rung can run.
    pub fn refusals(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let describe = |s: &Step| {
            let why = s.rung.as_ref().err()?;
            // The same refusal repeats in every layer; naming the first is enough.
            let at = if s.at.is_empty() { String::new() } else { format!(" (first in {})", s.at) };
            seen.insert((s.op, s.dtype, why.clone())).then(|| format!("{} in {}{at}: {why}", s.op, s.dtype))
        };
        self.steps.iter().filter_map(describe).collect()
    }

    /// Refuses weights that no known part of the architecture reads: a correctly understood model
    /// has none.
    fn check_unread(&self) -> Result<()> {
        let unknown: Vec<_> = self.unread.iter().filter(|name| !sconce_models::is_ignorable(name)).collect();
        let Some(first) = unknown.first() else { return Ok(()) };
        let more = if unknown.len() > 1 { format!(" and {} more tensors", unknown.len() - 1) } else { String::new() };
        let what = format!(
            "the weights hold {first}{more}, which the architecture in config.json does not have; do the weights belong to another model, \
             or to another version of it?"
        );
        Err(Error::file(&self.root, what))
    }

    /// Equal op calls with their number, in the order in which they first appear.
    pub fn grouped_steps(&self) -> Vec<(&Step, usize)> {
        let mut groups: Vec<(&Step, usize)> = Vec::new();
        for step in &self.steps {
            let alike = |(s, _): &&mut (&Step, usize)| {
                s.op == step.op && s.detail == step.detail && s.dtype == step.dtype && s.rung == step.rung
            };
            match groups.iter_mut().find(alike) {
                Some((_, n)) => *n += 1,
                None => groups.push((step, 1)),
            }
        }
        groups
    }

    /// Where the model runs: the device, or the provider of another engine.
    pub fn runs_on(&self) -> String {
        self.graph.as_ref().map_or_else(|| self.device.to_string(), |graph| graph.provider.to_string())
    }

    /// Whether the model runs on a GPU, or on a provider other than the CPU's.
    pub fn is_on_gpu(&self) -> bool {
        self.graph.as_ref().map_or(self.device.is_gpu(), |graph| graph.provider != Provider::Cpu)
    }

    /// Refuses a graph whose engine is not on this machine, or lacks the provider. Loads the
    /// engine's library, but no graph.
    pub fn check_engine(&self) -> Result<()> {
        self.graph.as_ref().map_or(Ok(()), GraphPlan::check)
    }

    /// Refuses a model that cannot run, has unknown weights, or does not fit into `free` bytes.
    pub fn check(&self, free: u64) -> Result<()> {
        let refusals = self.refusals();
        if !refusals.is_empty() {
            return Err(Error::Plan { device: self.device, refusals });
        }
        self.check_unread()?;
        if self.bytes() > free {
            let advice = match self.dtype {
                _ if self.weights.saturating_add(self.workspace) <= free => "try a smaller --context",
                _ if self.cache > 0 && !matches!(self.weight_format, WeightFormat::Blocks(_)) => "try --dtype q4_k",
                _ if self.weights < free && self.batch_tokens > self.max_tokens => "try a smaller --batch-tokens",
                DType::F32 => "try --dtype bf16",
                _ => "try another --device",
            };
            return Err(Error::Memory {
                device: self.device,
                dtype: self.dtype,
                weights: self.weights,
                cache: self.cache,
                workspace: self.workspace,
                tokens: self.batch_tokens,
                free,
                advice: advice.into(),
            });
        }
        Ok(())
    }
}
