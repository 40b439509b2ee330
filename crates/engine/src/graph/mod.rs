//! The interface to another engine that runs a model's whole graph: ONNX Runtime, in the crate
//! `onnx`, which this crate does not depend on.
//!
//! The other engine maps padded batches of token ids, or images, to rows of numbers. Everything
//! before that (texts, prompts, tokens, batches, pixels) and after it (pooling, dense layers,
//! normalization, scores) is ours, as for a model that we run ourselves.

mod options;
mod plan;

pub use options::{EngineChoice, GraphOptions, Provider};
pub use plan::{GraphFile, GraphPlan};

pub(crate) use plan::GraphCounts;

use sconce_formats::FileError;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The input with the token ids of texts.
const TEXT_INPUT: &str = "input_ids";
/// The input with the pixels of images.
const IMAGE_INPUT: &str = "pixel_values";

/// Another engine.
pub trait GraphRuntime: fmt::Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;
    /// Whether a model's folder has a graph.
    fn finds(&self, root: &Path) -> bool;
    /// Reads the head of a graph, without loading the engine's library.
    fn inspect(&self, root: &Path, file: Option<&str>) -> Result<GraphSummary, FileError>;
    /// Loads the engine's library, and checks that it has the provider. The error is a sentence for
    /// the user.
    fn check(&self, provider: Provider) -> Result<(), String>;
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

    /// The token ids of texts, if the graph reads texts.
    pub fn texts(&self) -> Option<&GraphPort> {
        self.input(TEXT_INPUT)
    }

    /// The pixels of images, if the graph reads images.
    pub fn images(&self) -> Option<&GraphPort> {
        self.input(IMAGE_INPUT)
    }

    /// The length that every sequence must have, if the graph was exported with a fixed one.
    pub fn fixed_length(&self) -> Option<usize> {
        self.texts().and_then(|port| port.dim(1))
    }
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphPort {
    /// Its name.
    pub name: String,
    /// Its type of numbers.
    pub element: Element,
    /// Its dimensions, `None` where any length is accepted; empty if the file does not say.
    pub dims: Vec<Option<usize>>,
}

impl GraphPort {
    /// A dimension, if it is fixed.
    pub fn dim(&self, place: usize) -> Option<usize> {
        self.dims.get(place).copied().flatten()
    }
}

impl fmt::Display for GraphPort {
    /// `input_ids (int64 [?, 128])`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.dims.iter().map(|dim| dim.map_or_else(|| "?".into(), |n| n.to_string())).collect();
        write!(f, "{} ({} [{}])", self.name, self.element, dims.join(", "))
    }
}

/// A type of numbers in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// A type that we neither fill nor read, by its number in ONNX.
    Other(u64),
}

impl Element {
    /// Names of ONNX's types by their numbers.
    const NAMES: [&str; 17] = [
        "an undeclared type",
        "float32",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "float64",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
    ];

    /// The type with this number in ONNX.
    pub fn from_onnx(number: u64) -> Element {
        match number {
            1 => Element::F32,
            6 => Element::I32,
            7 => Element::I64,
            10 => Element::F16,
            other => Element::Other(other),
        }
    }

    /// Whether it is a type of floating point numbers that we fill and read.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16)
    }

    /// Whether it is a type of integers that we fill.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Element::I32 | Element::I64)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self {
            Element::F32 => 1,
            Element::I32 => 6,
            Element::I64 => 7,
            Element::F16 => 10,
            Element::Other(number) => *number,
        };
        match usize::try_from(number).ok().and_then(|place| Element::NAMES.get(place)) {
            Some(name) => f.pad(name),
            None => write!(f, "ONNX type {number}"),
        }
    }
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
    /// The most tokens in a call, padding included, unless one text has more.
    pub batch_tokens: usize,
    /// Whether a call has one text or image, so that no result depends on others.
    pub one_per_call: bool,
    /// What to compute of texts; `None` if the graph is for images.
    pub texts: Option<TextOutput>,
    /// What to compute of images; `None` if the graph is for texts.
    pub images: Option<ImageOutput>,
}

/// An output with rows for texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOutput {
    /// Its name.
    pub name: String,
    /// Whether it has a row for each token, rather than one for each sequence.
    pub is_per_token: bool,
    /// The width of a row.
    pub width: usize,
    /// The id that fills short sequences up.
    pub padding: u32,
}

/// An output with a row for each image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOutput {
    /// Its name.
    pub name: String,
    /// The width of a row.
    pub width: usize,
    /// Width and height of an image, in pixels.
    pub side: usize,
    /// The output with a number for each image and text, if the graph reads both.
    pub logits: Option<String>,
}

/// One tokenized text for a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphText<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Token types, one per token.
    pub types: &'a [u32],
    /// Position ids, one per token.
    pub positions: &'a [u32],
    /// The first tokens that serve as keys; the others are masked out.
    pub keys: usize,
}

/// A graph that another engine has opened. Errors are sentences for the user. A graph that reads
/// texts and images gets a dummy of the kind that a call does not have.
pub trait Graph: Send {
    /// Computes the output of texts, and calls `sink` once for each text, in any order, with its
    /// index and its rows. Returns the number of calls of the engine.
    fn run(&self, texts: &[GraphText<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String>;
    /// Computes the output of images `[3, side, side]`, and calls `sink` once for each image, in any
    /// order, with its index and its row. Returns the number of calls of the engine.
    fn run_images(&self, images: &[&[f32]], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String>;
    /// The logit of one text and one image, for a graph that has [`ImageOutput::logits`].
    fn logit(&self, text: &GraphText<'_>, image: &[f32]) -> Result<f32, String>;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_onnx() {
        assert_eq!(Element::from_onnx(7).to_string(), "int64");
        assert_eq!(
            [9, 16, 0, 99].map(|n| Element::from_onnx(n).to_string()),
            ["bool", "bfloat16", "an undeclared type", "ONNX type 99"]
        );
        let port = GraphPort { name: "x".into(), element: Element::F16, dims: vec![None, Some(3)] };
        assert_eq!(port.to_string(), "x (float16 [?, 3])");
    }
}
