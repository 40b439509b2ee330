//! Options for loading a model.

use crate::dtype::DTypeChoice;
use crate::error::{Error, Result};
use crate::graph::{EngineChoice, GraphOptions, Provider};
use crate::plan::{Verdict, verdict_path};
use crate::prompt_cache::PromptCacheOptions;
use derive_setters::Setters;
use sconce_hub::{self as hub, Progress};
use sconce_ops::{Device, DeviceInfo, KvCacheFormat, Policy};
use std::str::FromStr;

/// The limit of `batch_tokens`: more than any device can use at once. It keeps a mistyped number
/// from exhausting the memory in planning.
const MOST_BATCH_TOKENS: usize = 1 << 20;

/// The requested device: a named one or the best available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best device that this build and this machine have; loading reports which and why.
    #[default]
    Auto,
    /// This device or an error, never another.
    Only(Device),
    /// A device that only ONNX Runtime has: CoreML or DirectML.
    Provider(Provider),
}

impl FromStr for DeviceChoice {
    type Err = sconce_ops::Error;
    fn from_str(s: &str) -> sconce_ops::Result<Self> {
        match s {
            "auto" => Ok(DeviceChoice::Auto),
            "coreml" => Ok(DeviceChoice::Provider(Provider::CoreMl)),
            "directml" => Ok(DeviceChoice::Provider(Provider::DirectMl)),
            _ => s.parse().map(DeviceChoice::Only),
        }
    }
}

impl DeviceChoice {
    /// The devices to try, best first, and for `auto` the reason for the first. Without `fallback`
    /// there is only one.
    pub fn candidates(self, fallback: bool) -> (Vec<Device>, Option<String>) {
        let (first, why) = match self {
            DeviceChoice::Only(device) => (device, None),
            // What of the model is ours runs on the CPU.
            DeviceChoice::Provider(_) => return (vec![Device::Cpu], None),
            DeviceChoice::Auto => {
                let (device, why) = Device::best();
                (device, Some(why))
            }
        };
        let mut devices = vec![first];
        if fallback {
            let others = Device::all().into_iter().map(|info| info.device);
            // The list begins with the CPU; GPUs are tried before it.
            devices.extend(others.rev().filter(|d| *d != first));
        }
        (devices, why)
    }
}

/// Options for loading a model.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct LoadOptions {
    /// The device to run on.
    pub device: DeviceChoice,
    /// Whether to fall back to the next best device if the requested one cannot run the model.
    /// Loading reports every fallback.
    pub fallback: bool,
    /// The format of weights and activations.
    #[setters(into)]
    pub dtype: DTypeChoice,
    /// Which rungs the ladder may choose.
    pub policy: Policy,
    /// The most tokens in a batch; `None`: what suits the device.
    pub batch_tokens: Option<usize>,
    /// The most bytes that defaults may fill, the size of the KV cache for example; `None`: what is
    /// free on the device.
    pub memory: Option<u64>,
    /// Where model files come from.
    pub hub: hub::Options,
    /// The result of the last `sconce doctor` on this machine.
    pub verdict: Option<Verdict>,
    /// Options of language models only.
    pub llm: LlmOptions,
    /// Where language models store prefixes of prompts for other processes; `None`: nowhere. On the
    /// CPU only.
    pub prompt_cache: Option<PromptCacheOptions>,
    /// Options of sequence-to-sequence models only.
    pub seq2seq: Seq2SeqLimits,
    /// Options of models that another engine runs.
    pub graph: GraphOptions,
    /// Source of a language model's chat template, instead of the one in its files.
    pub chat_template: Option<String>,
}

/// Options of language models only.
#[derive(Clone, Copy, Debug, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct LlmOptions {
    /// The longest sequence, prompt and answer together; `None`: the model's own limit, up to
    /// 8,192.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds, over all sequences; at least one sequence of full length.
    /// `None`: enough for all sequences at full length, but at most a quarter of the free memory.
    pub cache_tokens: Option<usize>,
    /// The format of the KV cache; `None`: that of the activations on a GPU; on a CPU f16 where the
    /// weights are not f32.
    pub cache_format: Option<KvCacheFormat>,
    /// The most sequences that run at once.
    pub sequences: usize,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions { context: None, cache_tokens: None, cache_format: None, sequences: 64 }
    }
}

/// Limits of a sequence-to-sequence model.
#[derive(Clone, Copy, Debug, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Seq2SeqLimits {
    /// The longest input, in tokens; longer inputs are truncated, and the answer says so. `None`:
    /// the length that the model was trained with.
    pub input: Option<usize>,
    /// The longest answer, in tokens.
    pub output: usize,
    /// The most answers that are generated at once; every beam counts as one.
    pub sequences: usize,
    /// The format of the KV cache; `None`: that of the activations on a GPU; on a CPU f16 where the
    /// weights are not f32.
    pub cache_format: Option<KvCacheFormat>,
}

impl Default for Seq2SeqLimits {
    fn default() -> Seq2SeqLimits {
        Seq2SeqLimits { input: None, output: 256, sequences: 16, cache_format: None }
    }
}

impl LoadOptions {
    /// Defaults, with the caches, the hub and this machine's doctor verdict from the environment.
    pub fn from_env() -> Result<LoadOptions> {
        let hub = hub::Options::from_env()?;
        let verdict = Verdict::read(&verdict_path(&hub))?;
        Ok(LoadOptions { verdict, ..LoadOptions::new(hub) })
    }

    /// Defaults with these caches.
    pub fn new(hub: hub::Options) -> LoadOptions {
        LoadOptions {
            device: DeviceChoice::Auto,
            fallback: false,
            dtype: DTypeChoice::Default,
            policy: Policy::default(),
            batch_tokens: None,
            memory: None,
            hub,
            verdict: None,
            llm: LlmOptions::default(),
            prompt_cache: None,
            seq2seq: Seq2SeqLimits::default(),
            graph: GraphOptions::default(),
            chat_template: None,
        }
    }

    /// Options for finding the model's files: if a graph is to run it, that is fetched instead of
    /// weights.
    pub fn hub_options(&self) -> hub::Options {
        let names_graph = self.graph.file.is_some() || matches!(self.device, DeviceChoice::Provider(_));
        let onnx = match self.graph.engine {
            EngineChoice::Onnx => true,
            EngineChoice::Auto => names_graph,
            EngineChoice::Native => false,
        };
        let mut options = self.hub.clone();
        if onnx {
            options.onnx = hub::OnnxFiles::InPlaceOfWeights(self.graph.file.clone());
        }
        options
    }

    /// Calls `on` with the requested device. If that device cannot run the model and `fallback` is
    /// set, calls it with the next best device, and so on. Reports every fallback.
    pub(crate) fn on_candidates<T>(&self, progress: &dyn Progress, on: impl Fn(Device) -> Result<T>) -> Result<T> {
        let (candidates, why) = self.device.candidates(self.fallback);
        if let Some(why) = why {
            progress.note(&format!("device: {}, chosen by auto ({why})", candidates[0]));
        }
        for (i, device) in candidates.iter().enumerate() {
            self.report_withdrawn(*device, progress);
            match (on(*device), candidates.get(i + 1)) {
                (Err(e), Some(next)) if e.is_device_error() => {
                    progress.note(&format!("{e}; falling back to {next} (--fallback)"));
                }
                (result, _) => return result,
            }
        }
        Err(Error::Input("no device is available".into()))
    }

    /// Reports the kernels that doctor withdrew on `device`, so that users need not search for why
    /// a model is slow.
    fn report_withdrawn(&self, device: Device, progress: &dyn Progress) {
        let Ok(info) = device.info() else { return };
        for w in &self.for_device(&info).policy.withdrawn {
            progress.note(&format!("{w} failed its cases on this machine and is withdrawn; see `sconce doctor`"));
        }
    }

    /// These options with the kernels that the doctor's verdict withdraws on this device. Kernels
    /// withdrawn on the CPU are included, because the host rung runs there.
    pub(crate) fn for_device(&self, device: &DeviceInfo) -> LoadOptions {
        let mut options = self.clone();
        if let Some(verdict) = options.verdict.take() {
            let cpu = if device.device.is_gpu() { Device::Cpu.info().ok() } else { None };
            let withdrawn = std::iter::once(device).chain(&cpu).flat_map(|d| verdict.withdrawn(d));
            options.policy.withdrawn.extend(withdrawn);
        }
        options
    }

    /// Bytes that defaults may fill on `device`; 0 if it is not in this machine.
    pub(crate) fn free_bytes(&self, device: Device) -> u64 {
        let free = device.info().map_or(0, |info| info.free_bytes);
        free.min(self.memory.unwrap_or(u64::MAX))
    }

    /// Tokens per batch on `device`: enough to keep a GPU's multiprocessors busy, few enough to
    /// stay in a CPU's caches.
    pub(crate) fn batch_tokens(&self, device: Device) -> Result<usize> {
        match self.batch_tokens {
            None => Ok(if device.is_gpu() { 32_768 } else { 4_096 }),
            Some(n @ 1..=MOST_BATCH_TOKENS) => Ok(n),
            Some(n) => Err(Error::Input(format!("--batch-tokens {n} is out of range: use 1 to {MOST_BATCH_TOKENS}"))),
        }
    }
}
