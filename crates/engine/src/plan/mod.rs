//! What will run where, and what it will take, before a byte of weights is read.

mod size;
mod trace;
mod verdict;

pub use size::Size;
pub(crate) use trace::{Outline, Trace};
pub use verdict::{Verdict, verdict_path};

use crate::error::{Error, Result};
use sconce_ops::{DType, Device, Step, WeightFormat};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The least cosine to vectors in f32 that `auto` puts up with: it takes the fastest format that is held to no less.
pub const LEAST_AUTO: f64 = 0.999;

/// What bf16 and f16 are held to, and what int8.
const LEAST_HALF: f64 = 0.9998;
const LEAST_BYTES: f64 = 0.995;

// So that there is nothing to choose but between f32 and bf16: see `LoadOptions::format`.
const _: () = assert!(LEAST_HALF >= LEAST_AUTO && LEAST_BYTES < LEAST_AUTO);

/// A plan, and how a kind of model is laid out beyond it.
#[derive(Clone, Debug)]
pub(crate) struct Planned<L> {
    pub(crate) plan: Plan,
    pub(crate) layout: L,
}

/// A model on a device, planned by running its own forward pass on phantoms.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device planned for.
    pub device: Device,
    /// The format of activations, and of weights unless `weight_format` says otherwise.
    pub dtype: DType,
    /// What matrices are kept in.
    pub weight_format: WeightFormat,
    /// Why an encoder has this format, where it was chosen by `auto`.
    pub chosen: Option<String>,
    /// Every op call of a forward pass.
    pub steps: Vec<Step>,
    /// Bytes of weights, as packed for the device.
    pub weights: u64,
    /// Bytes of the cache of keys and values, of language models.
    pub cache: u64,
    /// Tokens that it keeps, of all sequences together.
    pub cache_tokens: usize,
    /// The most bytes that tensors of one batch hold at once. What is kept from batch to batch stays within it.
    pub workspace: u64,
    /// What of it is of passes that are recorded, and nothing else's.
    pub recorded: u64,
    /// Tokens of the batch that was planned for.
    pub batch_tokens: usize,
    /// The longest text, in tokens.
    pub max_tokens: usize,
    /// Numbers in a vector.
    pub dimension: usize,
    /// Words of the model's table.
    pub vocabulary: usize,
    /// The most texts of a batch.
    pub most_sequences: usize,
    /// Where the encoder's files are.
    pub root: PathBuf,
    /// Weights in the files that the model does not read.
    pub unread: Vec<String>,
}

impl Plan {
    /// The format by the name that is asked for it: that of activations, unless an encoder's weights are in bytes.
    pub fn format(&self) -> String {
        if self.weight_format == WeightFormat::Bytes { "int8".into() } else { self.dtype.to_string() }
    }

    /// The least cosine between an encoder's vectors and those in f32, as tests hold MiniLM to it; `None` where nothing is lost.
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

    /// The calls that no allowed rung takes.
    pub fn refusals(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let tell = |s: &Step| {
            let why = s.rung.as_ref().err()?;
            // The same refusal comes back in every layer; the first place will do.
            let at = if s.at.is_empty() { String::new() } else { format!(" (first in {})", s.at) };
            seen.insert((s.op, s.dtype, why.clone())).then(|| format!("{} in {}{at}: {why}", s.op, s.dtype))
        };
        self.steps.iter().filter_map(tell).collect()
    }

    /// Refuses weights that belong to no part of the model that is known: a model that was understood has none.
    fn check_unread(&self) -> Result<()> {
        let strange: Vec<_> = self.unread.iter().filter(|name| !sconce_models::is_ignorable(name)).collect();
        let Some(first) = strange.first() else { return Ok(()) };
        let more = if strange.len() > 1 { format!(" and {} more tensors", strange.len() - 1) } else { String::new() };
        let what = format!(
            "the weights hold {first}{more}, which this architecture does not have by its config.json; are they of another model, \
             or saved by another version of it?"
        );
        Err(Error::file(&self.root, what))
    }

    /// Refuses what cannot run, was not understood, or would not fit into `free` bytes.
    pub fn check(&self, free: u64) -> Result<()> {
        let refusals = self.refusals();
        if !refusals.is_empty() {
            return Err(Error::Plan { device: self.device, refusals });
        }
        self.check_unread()?;
        if self.bytes() > free {
            let advice = match self.dtype {
                _ if self.weights.saturating_add(self.workspace) <= free => "try a smaller --context",
                DType::F32 if self.cache > 0 => "try --dtype q4_k",
                _ if self.weights < free && self.batch_tokens > self.max_tokens => "try a smaller --batch-tokens",
                DType::F32 => "try --dtype bf16",
                _ => "try another --device",
            };
            return Err(Error::Memory {
                device: self.device,
                dtype: self.dtype,
                weights: self.weights,
                workspace: self.workspace.saturating_add(self.cache),
                tokens: self.batch_tokens,
                free,
                advice: advice.into(),
            });
        }
        Ok(())
    }
}
