//! How a model is to be loaded.

use crate::error::{Error, Result};
use crate::plan::{LEAST_AUTO, Verdict, verdict_path};
use sconce_hub::{self as hub, Progress};
use sconce_ops::{DType, Device, DeviceInfo, Isa, KvCacheFormat, Policy, WeightFormat};
use std::str::FromStr;

/// More tokens than any device can use at once; a slip of the finger beyond it should not cost memory even to plan.
const MOST_BATCH_TOKENS: usize = 1 << 20;

/// The device asked for: one by name, or the best there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best that this build and this machine have; says which and why.
    #[default]
    Auto,
    /// This one or an error, never another.
    Only(Device),
}

impl FromStr for DeviceChoice {
    type Err = sconce_ops::Error;
    fn from_str(s: &str) -> sconce_ops::Result<Self> {
        if s == "auto" { Ok(DeviceChoice::Auto) } else { s.parse().map(DeviceChoice::Only) }
    }
}

impl DeviceChoice {
    /// The devices to try, best first, and for `auto` why the first is the one. Without `fallback` there is one only.
    pub fn candidates(self, fallback: bool) -> (Vec<Device>, Option<String>) {
        let (first, why) = match self {
            DeviceChoice::Only(device) => (device, None),
            DeviceChoice::Auto => {
                let (device, why) = Device::best();
                (device, Some(why))
            }
        };
        let mut devices = vec![first];
        if fallback {
            let others = Device::all().into_iter().map(|info| info.device);
            // A GPU before the CPU, which is first in the list.
            devices.extend(others.rev().filter(|d| *d != first));
        }
        (devices, why)
    }
}

/// What an encoder's numbers are in.
pub(crate) struct Format {
    /// Activations, and matrices unless `weight_format` says otherwise.
    pub(crate) dtype: DType,
    pub(crate) weight_format: WeightFormat,
    /// Why, where it was chosen by `auto`.
    pub(crate) chosen: Option<String>,
}

/// How a model is to be loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Whether the next best device may be taken where that one cannot serve. Every such step is told.
    pub fallback: bool,
    /// The format of weights and activations.
    pub dtype: DType,
    /// Whether encoders take the fastest format of the device that is held to [`crate::LEAST_AUTO`], and not `dtype`.
    pub auto: bool,
    /// What language models weight_format their matrices in; `None`: what their files hold, where the device has products on that beside
    /// activations in `dtype`. Encoders weight_format theirs in bytes, if that is asked for, or in `dtype`.
    pub weight_format: Option<WeightFormat>,
    /// What the ladder may do.
    pub policy: Policy,
    /// The most tokens in a batch; `None` takes what suits the device.
    pub batch_tokens: Option<usize>,
    /// Where files come from.
    pub hub: hub::Options,
    /// What doctor last found on this machine.
    pub verdict: Option<Verdict>,
    /// What a language model is to have besides.
    pub llm: LlmOptions,
    /// What a sequence-to-sequence model is to have besides.
    pub seq2seq: Seq2SeqLimits,
}

/// What a language model is to have besides what every model has.
#[derive(Clone, Copy, Debug)]
pub struct LlmOptions {
    /// The longest sequence, prompt and answer; `None`: what it was made for, up to 8,192.
    pub context: Option<usize>,
    /// Tokens that the KV cache holds, of all sequences together, at least one of the longest. `None`: all sequences may be of the
    /// longest, as far as a quarter of the free memory has room for them.
    pub cache_tokens: Option<usize>,
    /// The format of the KV cache; `None`: f16 beside weights that are not f32.
    pub cache_format: Option<KvCacheFormat>,
    /// The most sequences that run at once.
    pub sequences: usize,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions { context: None, cache_tokens: None, cache_format: None, sequences: 64 }
    }
}

/// How much room a sequence-to-sequence model is to have.
#[derive(Clone, Copy, Debug)]
pub struct Seq2SeqLimits {
    /// The longest input, in tokens; what is longer is cut, and said to be. `None`: what the model was trained with.
    pub input: Option<usize>,
    /// The longest answer, in tokens.
    pub output: usize,
    /// The most answers that are written at once; every beam counts as one.
    pub sequences: usize,
    /// The format of the KV cache; `None`: f16 beside weights that are not f32.
    pub cache_format: Option<KvCacheFormat>,
}

impl Default for Seq2SeqLimits {
    fn default() -> Seq2SeqLimits {
        Seq2SeqLimits { input: None, output: 256, sequences: 16, cache_format: None }
    }
}

impl LoadOptions {
    /// Defaults, with the caches, the hub and this machine's doctor verdict as the environment has them.
    pub fn from_env() -> Result<LoadOptions> {
        let hub = hub::Options::from_env()?;
        let verdict = Verdict::read(&verdict_path(&hub))?;
        Ok(LoadOptions { verdict, ..LoadOptions::new(hub) })
    }

    /// Defaults over these caches.
    pub fn new(hub: hub::Options) -> LoadOptions {
        LoadOptions {
            device: DeviceChoice::Auto,
            fallback: false,
            dtype: DType::F32,
            auto: false,
            weight_format: None,
            policy: Policy::default(),
            batch_tokens: None,
            hub,
            verdict: None,
            llm: LlmOptions::default(),
            seq2seq: Seq2SeqLimits::default(),
        }
    }

    /// What `on` makes of the device asked for, or, where one cannot serve and a fallback is allowed, of the next best. Every
    /// choice is told.
    pub(crate) fn on_a_device<T>(&self, progress: &dyn Progress, on: impl Fn(Device) -> Result<T>) -> Result<T> {
        let (candidates, why) = self.device.candidates(self.fallback);
        if let Some(why) = why {
            progress.note(&format!("device: {}, chosen by auto ({why})", candidates[0]));
        }
        for (i, device) in candidates.iter().enumerate() {
            self.tell_withdrawn(*device, progress);
            match (on(*device), candidates.get(i + 1)) {
                (Err(e), Some(next)) if e.is_the_devices() => {
                    progress.note(&format!("{e}; falling back to {next}, as was allowed"));
                }
                (result, _) => return result,
            }
        }
        Err(Error::Input("there is no device to run on".into()))
    }

    /// Names what is withdrawn on `device`, whatever the task: who wonders why a model is slow should not have to search.
    fn tell_withdrawn(&self, device: Device, progress: &dyn Progress) {
        let Ok(info) = device.info() else { return };
        for w in &self.on(&info).policy.withdrawn {
            progress.note(&format!("{w} failed its cases on this machine and is withdrawn; see `sconce doctor`"));
        }
    }

    /// The same, with what the verdict withdraws on this device, and on the CPU, to which the host rung may hand an op.
    pub(crate) fn on(&self, device: &DeviceInfo) -> LoadOptions {
        let mut options = self.clone();
        if let Some(verdict) = options.verdict.take() {
            let cpu = if device.device.is_gpu() { Device::Cpu.info().ok() } else { None };
            let judged = std::iter::once(device).chain(&cpu).flat_map(|d| verdict.withdrawn(d));
            options.policy.withdrawn.extend(judged);
        }
        options
    }

    /// What an encoder's activations and matrices are in on `device`, and why, where that was left to us.
    pub(crate) fn format(&self, device: Device) -> Result<Format> {
        let weight_format = match self.weight_format {
            Some(WeightFormat::Bytes) if !self.auto => WeightFormat::Bytes,
            Some(WeightFormat::Blocks(blocks)) => {
                let what =
                    format!("--dtype {blocks} is for language models; encoders take auto, f32, bf16, f16 or int8");
                return Err(Error::Input(what));
            }
            _ => WeightFormat::Activations,
        };
        if weight_format == WeightFormat::Bytes && device.is_gpu() {
            let what = format!("--dtype int8 is for the CPU, and this is {device}; take bf16 or f16, or --device cpu");
            return Err(Error::Input(what));
        }
        if !self.auto {
            return Ok(Format { dtype: self.dtype, weight_format, chosen: None });
        }
        let within = format!(" within a cosine of {LEAST_AUTO} to f32");
        let (dtype, why) = match device {
            Device::Cpu => match Isa::of(&self.policy)? {
                isa if isa.prefers_bf16() => (DType::BF16, format!("the fastest on {isa}{within}")),
                isa => (DType::F32, format!("{isa} has nothing faster{within}")),
            },
            gpu => (DType::F32, format!("nothing else was measured on {gpu}")),
        };
        Ok(Format { dtype, weight_format, chosen: Some(why) })
    }

    /// What a language model's matrices are kept in on `device`.
    pub(crate) fn kept(&self, device: Device) -> Result<WeightFormat> {
        match (self.weight_format, device) {
            (Some(WeightFormat::Bytes), _) => {
                Err(Error::Input("--dtype int8 is for encoders; language models take q8_0".into()))
            }
            (Some(weight_format), _) => Ok(weight_format),
            // Our kernels read blocks beside activations in any format, and reading them is what writing a token costs.
            (None, Device::Metal(_) | Device::Cuda(_)) => Ok(WeightFormat::File),
            (None, _) if self.dtype == DType::F32 => Ok(WeightFormat::File),
            (None, _) => Ok(WeightFormat::Activations),
        }
    }

    /// Tokens of a batch on `device`: what keeps a CPU's caches warm, or a GPU's multiprocessors busy.
    pub(crate) fn batch_tokens(&self, device: Device) -> Result<usize> {
        match self.batch_tokens {
            None => Ok(if device.is_gpu() { 32_768 } else { 4_096 }),
            Some(n @ 1..=MOST_BATCH_TOKENS) => Ok(n),
            Some(n) => Err(Error::Input(format!("batches of {n} tokens: from 1 to {MOST_BATCH_TOKENS} will do"))),
        }
    }
}
