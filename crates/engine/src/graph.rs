//! The interface to another engine that runs a model's whole graph: ONNX Runtime, in the crate
//! `onnx`, which this crate does not depend on.
//!
//! The other engine maps padded batches of token ids to rows of numbers. Everything before that
//! (texts, prompts, tokens, batches) and after it (pooling, dense layers, normalization, scores) is
//! ours, as for a model that we run ourselves.

use crate::error::{Error, Result};
use crate::options::{DeviceChoice, LoadOptions};
use derive_setters::Setters;
use sconce_formats::FileError;
use sconce_ops::Device;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Which engine runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Ours where we have the architecture and the files have its weights, else ONNX Runtime.
    #[default]
    Auto,
    /// Ours.
    Native,
    /// ONNX Runtime.
    Onnx,
}

impl FromStr for EngineChoice {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(EngineChoice::Auto),
            "native" => Ok(EngineChoice::Native),
            "onnx" => Ok(EngineChoice::Onnx),
            _ => Err(Error::Input(format!("unknown engine `{s}`; one of auto, native, onnx"))),
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineChoice::Auto => "auto",
            EngineChoice::Native => "native",
            EngineChoice::Onnx => "onnx",
        })
    }
}

/// An execution provider of ONNX Runtime: the part of it that runs nodes on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Provider {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by ordinal.
    Cuda(usize),
    /// Apple's CoreML.
    CoreMl,
    /// DirectML, on Windows.
    DirectMl,
}

impl Provider {
    /// The provider for a device that the user named.
    pub(crate) fn of(device: Device) -> Result<Provider> {
        match device {
            Device::Cpu => Ok(Provider::Cpu),
            Device::Cuda(n) => Ok(Provider::Cuda(n)),
            Device::Metal(_) => {
                let what = "ONNX Runtime has no provider for metal; take --device coreml, or --engine native";
                Err(Error::Input(what.into()))
            }
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Provider::Cpu => f.pad("cpu"),
            Provider::Cuda(n) => f.pad(&format!("cuda:{n}")),
            Provider::CoreMl => f.pad("coreml"),
            Provider::DirectMl => f.pad("directml"),
        }
    }
}

/// Options for models that another engine runs.
#[derive(Clone, Debug, Default, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct GraphOptions {
    /// Which engine runs the model.
    pub engine: EngineChoice,
    /// The file of the graph, relative to the model's folder; `None`: `model.onnx` there or in
    /// `onnx/`.
    pub file: Option<String>,
    /// Whether texts of a dynamically quantized graph may share a call, so that a text's result
    /// depends on the others.
    pub batch_dependent: bool,
    /// The other engine; `None` in a build without it.
    pub runtime: Option<Arc<dyn GraphRuntime>>,
}

impl GraphOptions {
    /// Refuses options that only another engine can honour, for a model that we run ourselves.
    pub(crate) fn refuse_native(&self, options: &LoadOptions) -> Result<()> {
        if let DeviceChoice::Provider(provider) = options.device {
            let what = format!("{provider} is a device of ONNX Runtime; take --engine onnx, or another --device");
            return Err(Error::Input(what));
        }
        if self.file.is_some() {
            return Err(Error::Input("--onnx-file is for models that ONNX Runtime runs; take --engine onnx".into()));
        }
        Ok(())
    }

    /// Refuses all options for another engine, for a kind of model that it cannot run.
    pub(crate) fn refuse_all(&self, options: &LoadOptions, kind: &str) -> Result<()> {
        if self.engine == EngineChoice::Onnx {
            return Err(Error::Input(format!("ONNX Runtime does not run {kind} here; take --engine native")));
        }
        self.refuse_native(options)
    }
}

/// Another engine.
pub trait GraphRuntime: fmt::Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;
    /// Whether a model's folder has a graph.
    fn finds(&self, root: &Path) -> bool;
    /// Reads the head of a graph, without loading the engine's library.
    fn inspect(&self, root: &Path, file: Option<&str>) -> Result<GraphSummary, FileError>;
    /// Opens a graph. The error is a sentence for the user.
    fn open(&self, summary: &GraphSummary, settings: &GraphSettings) -> Result<Box<dyn Graph>, String>;
}

/// What the head of a graph says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphSummary {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, with the weights in other files.
    pub bytes: u64,
    /// Its inputs.
    pub inputs: Vec<GraphPort>,
    /// Its outputs.
    pub outputs: Vec<GraphPort>,
    /// How many nodes each operator has.
    pub operators: BTreeMap<String, u64>,
    /// Whether a text's result depends on the other texts of its call (dynamic quantization).
    pub is_batch_dependent: bool,
}

impl GraphSummary {
    /// The output with one of these names, the first name first.
    pub(crate) fn output(&self, names: &[&str]) -> Option<&GraphPort> {
        names.iter().find_map(|name| self.outputs.iter().find(|port| port.name == *name))
    }

    fn input(&self, name: &str) -> Option<&GraphPort> {
        self.inputs.iter().find(|port| port.name == name)
    }

    /// The length that every sequence must have, if the graph was exported with a fixed one.
    pub fn fixed_length(&self) -> Option<usize> {
        self.input("input_ids").and_then(|port| port.dims.get(1).copied().flatten())
    }
}

/// An input or output of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphPort {
    /// Its name.
    pub name: String,
    /// Its dimensions, `None` where any length is accepted; empty if the file does not say.
    pub dims: Vec<Option<usize>>,
}

/// How a graph is opened.
#[derive(Clone, Debug)]
pub struct GraphSettings {
    /// Where it runs.
    pub provider: Provider,
    /// Whether nodes that the provider lacks may run on the CPU.
    pub allow_host: bool,
    /// Threads on the CPU.
    pub threads: usize,
    /// The id that fills short sequences up.
    pub padding: u32,
    /// Whether a call has one text, so that no result depends on other texts.
    pub one_per_call: bool,
    /// The output to compute.
    pub output: String,
    /// Whether the output has a row for each token, rather than one for each sequence.
    pub is_per_token: bool,
    /// The width of a row, if it is known.
    pub width: usize,
}

/// One tokenized text for a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphText<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Token types, one per token.
    pub types: &'a [u32],
    /// The first tokens that serve as keys; the others are masked out.
    pub keys: usize,
}

/// A graph that another engine has opened.
pub trait Graph: Send {
    /// Runs the graph and calls `sink` once for each text, in any order, with its index and its
    /// rows. The error is a sentence for the user.
    fn run(&self, texts: &[GraphText<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String>;
    /// The nodes as the engine distributed them over providers.
    fn nodes(&self) -> Vec<ProviderNodes>;
    /// The engine's version.
    fn version(&self) -> String;
}

/// Nodes of one operator that one provider runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderNodes {
    /// The operator.
    pub operator: String,
    /// The provider, by ONNX Runtime's name.
    pub provider: String,
    /// How many nodes: the number of times that a call runs the operator there.
    pub nodes: u64,
}

/// The part of a [`crate::Plan`] that another engine runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraphPlan {
    /// The other engine.
    pub runtime: Arc<dyn GraphRuntime>,
    /// What the head of the graph says.
    pub summary: GraphSummary,
    /// Where the graph runs.
    pub provider: Provider,
    /// Whether nodes that the provider lacks may run on the CPU.
    pub allow_host: bool,
    /// Whether each call has one text.
    pub one_per_call: bool,
    /// What ran.
    pub(crate) counts: Arc<GraphCounts>,
}

/// What ran of a graph since it was opened.
#[derive(Debug, Default)]
pub(crate) struct GraphCounts {
    nodes: OnceLock<(String, Vec<ProviderNodes>)>,
    calls: AtomicU64,
}

impl GraphCounts {
    pub(crate) fn opened(&self, version: String, nodes: Vec<ProviderNodes>) {
        // A graph is opened once; a second one would have the same nodes.
        let _ = self.nodes.set((version, nodes));
    }

    pub(crate) fn add_calls(&self, calls: u64) {
        self.calls.fetch_add(calls, Relaxed);
    }

    /// Forgets the calls of a sanity check.
    pub(crate) fn reset(&self) {
        self.calls.store(0, Relaxed);
    }
}

impl GraphPlan {
    /// The calls of the graph since it was opened.
    pub fn calls(&self) -> u64 {
        self.counts.calls.load(Relaxed)
    }

    /// The nodes of the opened graph by operator and provider; empty before it is opened.
    pub fn nodes(&self) -> &[ProviderNodes] {
        self.counts.nodes.get().map_or(&[], |(_, nodes)| nodes)
    }

    /// The other engine and, once the graph is open, its version.
    pub fn engine(&self) -> String {
        match self.counts.nodes.get() {
            Some((version, _)) => format!("{} {version}", self.runtime.name()),
            None => self.runtime.name().into(),
        }
    }
}
