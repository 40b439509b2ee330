//! The options of models that another engine runs.

use super::GraphRuntime;
use crate::error::{Error, Result};
use crate::options::{DeviceChoice, LoadOptions};
use derive_setters::Setters;
use sconce_ops::Device;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

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

    /// Our device whose batches suit the provider.
    pub(crate) fn sized_as(self) -> Device {
        match self {
            Provider::Cpu => Device::Cpu,
            Provider::Cuda(n) => Device::Cuda(n),
            Provider::CoreMl | Provider::DirectMl => Device::Metal(0),
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
    /// The file of the graph, relative to the model's folder or to `onnx/` in it; `None`:
    /// `model.onnx`. If a two-tower model has a file for each tower, either of them.
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
        let what = match options.device {
            DeviceChoice::Provider(provider) => {
                format!("{provider} is a device of ONNX Runtime; take --engine onnx, or another --device")
            }
            _ if self.file.is_some() => "--onnx-file is for models that ONNX Runtime runs; take --engine onnx".into(),
            _ if self.batch_dependent && self.engine == EngineChoice::Native => {
                "--batch-dependent is for models that ONNX Runtime runs; leave it out, or take --engine onnx".into()
            }
            _ => return Ok(()),
        };
        Err(Error::Input(what))
    }

    /// Refuses options that only we can honour, for a model that another engine runs.
    pub(crate) fn refuse_graph(options: &LoadOptions) -> Result<()> {
        let flag = match (options.policy.isa, options.policy.force) {
            (Some(_), _) => "--isa",
            (None, Some(_)) => "--rung",
            (None, None) => return Ok(()),
        };
        let what = format!("{flag} chooses between Sconce's kernels, not ONNX Runtime's; take --engine native");
        Err(Error::Input(what))
    }

    /// Refuses all options for another engine, for a kind of model that it cannot run.
    pub(crate) fn refuse_all(&self, options: &LoadOptions, kind: &str) -> Result<()> {
        if self.engine == EngineChoice::Onnx {
            return Err(Error::Input(format!("ONNX Runtime does not run {kind} here; take --engine native")));
        }
        self.refuse_native(options)
    }
}
