//! Which number formats a model runs in: those the user asks for, or those that a careful user
//! would choose for the model's files and the device.

use crate::error::{Error, Result};
use crate::plan::LEAST_AUTO;
use sconce_formats::Model;
use sconce_ops::{DType, Device, Isa, KvCacheFormat, Policy, Quant, Stored, WeightFormat};
use std::str::FromStr;

/// The requested format of weights and activations (`--dtype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DTypeChoice {
    /// On a GPU half precision: the type of the files, f16 for encoders stored in f32 and beside
    /// quantized weights, and bf16 for language models stored in f32 and for architectures that
    /// overflow f16. On a CPU f32 activations, with f32 weights for encoders and the weights of the
    /// files for language models. Quantized weights stay as in the files, everywhere.
    #[default]
    Default,
    /// Like `Default`, but encoders on a CPU run in bf16 where that is faster.
    Auto,
    /// Weights and activations in this format.
    Float(DType),
    /// Weights of the layers in bytes with one scale per output, for encoders on a CPU.
    Int8,
    /// Matrices in quantized blocks, for language models.
    Blocks(Quant),
}

impl FromStr for DTypeChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<DTypeChoice> {
        match s {
            "auto" => return Ok(DTypeChoice::Auto),
            "int8" => return Ok(DTypeChoice::Int8),
            _ => {}
        }
        let blocks = || s.parse().ok().filter(|quant: &Quant| quant.quantizes()).map(DTypeChoice::Blocks);
        s.parse().map(DTypeChoice::Float).ok().or_else(blocks).ok_or_else(|| {
            let names: Vec<String> = Quant::all().filter(|q| q.quantizes()).map(|q| q.to_string()).collect();
            let names = names.join(", ");
            Error::Input(format!(
                "unknown format `{s}`; formats: auto, f32, bf16, f16; for encoders also int8; for language models also {names}"
            ))
        })
    }
}

impl From<DType> for DTypeChoice {
    fn from(dtype: DType) -> DTypeChoice {
        DTypeChoice::Float(dtype)
    }
}

/// The formats of a model on a device.
#[derive(Clone, Debug)]
pub(crate) struct Formats {
    /// The format of activations, and of matrices unless `weight_format` differs.
    pub(crate) dtype: DType,
    pub(crate) weight_format: WeightFormat,
    /// The format of a KV cache unless the user names another.
    pub(crate) cache_format: KvCacheFormat,
    /// Why these.
    pub(crate) why: String,
}

impl Formats {
    fn new(dtype: DType, weight_format: WeightFormat, why: impl Into<String>) -> Formats {
        Formats { dtype, weight_format, cache_format: KvCacheFormat::Float(dtype), why: why.into() }
    }

    /// The formats of a model that another engine runs: its graph has its own.
    pub(crate) fn of_graph(choice: DTypeChoice) -> Result<Formats> {
        match choice {
            DTypeChoice::Default | DTypeChoice::Auto | DTypeChoice::Float(DType::F32) => Ok(Formats::new(
                DType::F32,
                WeightFormat::Activations,
                "results of the graph, which has its own formats",
            )),
            DTypeChoice::Float(_) | DTypeChoice::Int8 | DTypeChoice::Blocks(_) => {
                let what = "--dtype does not apply to a model that ONNX Runtime runs: choose another file with --onnx-file, \
                            or take --engine native";
                Err(Error::Input(what.into()))
            }
        }
    }

    /// The same formats with a copy of quantized weights in half precision, which makes prompts
    /// faster. `None` if weights do not stay in the format of the files, or on another device.
    pub(crate) fn with_copies(&self, device: Device) -> Option<Formats> {
        let can_copy = matches!(device, Device::Cuda(_)) && self.weight_format == WeightFormat::File;
        let why = format!("{}, and a copy of the weights in {} for prompts: memory is ample", self.why, self.dtype);
        can_copy.then(|| Formats { weight_format: WeightFormat::FileAndActivations, why, ..self.clone() })
    }
}

impl DTypeChoice {
    /// The formats of an encoder.
    pub(crate) fn of_encoder(self, model: &Model, device: Device, policy: &Policy) -> Result<Formats> {
        let refused = |what: String| Err(Error::Input(what));
        if let (DTypeChoice::Default | DTypeChoice::Auto, Some(Stored::Blocks(quant))) = (self, stored(model)?) {
            let dtype = beside_blocks(model, device);
            let why = format!("weights as in the files ({quant}), activations in {dtype}");
            return Ok(Formats::new(dtype, WeightFormat::File, why));
        }
        match self {
            DTypeChoice::Blocks(quant) => {
                refused(format!("--dtype {quant} is for language models; encoders take auto, f32, bf16, f16 or int8"))
            }
            DTypeChoice::Int8 if device.is_gpu() => {
                refused(format!("--dtype int8 is for the CPU, and this is {device}; take bf16 or f16, or --device cpu"))
            }
            // Activations are f32: CPUs without bf16 are fast in f32, and for those with bf16 there
            // is `auto`.
            DTypeChoice::Int8 => Ok(Formats::new(DType::F32, WeightFormat::Bytes, "as --dtype int8 asks")),
            DTypeChoice::Float(dtype) => Ok(forced(dtype)),
            DTypeChoice::Default | DTypeChoice::Auto if device.is_gpu() => {
                let (dtype, why) = half(model, device, DType::F16)?;
                Ok(Formats::new(dtype, WeightFormat::Activations, why))
            }
            DTypeChoice::Default => {
                Ok(Formats::new(DType::F32, WeightFormat::Activations, "full precision, the default on a CPU"))
            }
            DTypeChoice::Auto => {
                let within = format!(" within a cosine of {LEAST_AUTO} to f32");
                let (dtype, why) = match Isa::of(policy)? {
                    isa if isa.prefers_bf16() => (DType::BF16, format!("the fastest on {isa}{within}")),
                    isa => (DType::F32, format!("{isa} has nothing faster{within}")),
                };
                Ok(Formats::new(dtype, WeightFormat::Activations, why))
            }
        }
    }

    /// The formats of a language model or a sequence-to-sequence model.
    pub(crate) fn of_decoder(self, model: &Model, device: Device) -> Result<Formats> {
        let (weight_format, reason) = match self {
            DTypeChoice::Int8 => {
                return Err(Error::Input("--dtype int8 is for encoders; language models take q8_0".into()));
            }
            DTypeChoice::Float(dtype) => return Ok(forced(dtype)),
            DTypeChoice::Blocks(quant) => (WeightFormat::Blocks(quant), Some(format!("as --dtype {quant} asks"))),
            DTypeChoice::Default | DTypeChoice::Auto => (WeightFormat::File, None),
        };
        if device.is_gpu() {
            let blocks = match (weight_format, stored(model)?) {
                (WeightFormat::Blocks(quant), _) | (_, Some(Stored::Blocks(quant))) => Some(quant),
                _ => None,
            };
            let (dtype, why) = match blocks {
                Some(quant) => {
                    let dtype = beside_blocks(model, device);
                    (dtype, format!("weights as in the files ({quant}), activations in {dtype}"))
                }
                None => half(model, device, DType::BF16)?,
            };
            return Ok(Formats::new(dtype, weight_format, reason.unwrap_or(why)));
        }
        let why = reason.unwrap_or_else(|| "weights as in the files, activations in f32".into());
        // Half precision halves the bytes that every token reads, and its error is smaller than
        // that of any quantized format of weights.
        let is_full = weight_format == WeightFormat::File && stored(model)? == Some(Stored::Float(DType::F32));
        let cache_format = KvCacheFormat::Float(if is_full { DType::F32 } else { DType::F16 });
        Ok(Formats { cache_format, ..Formats::new(DType::F32, weight_format, why) })
    }
}

/// The format of activations beside weights in blocks. Our kernels multiply blocks with activations
/// of any format, on a GPU long texts fastest with f16.
fn beside_blocks(model: &Model, device: Device) -> DType {
    match device.is_gpu() {
        false => DType::F32,
        true if sconce_models::overflows_f16(&model.config) => DType::BF16,
        true => DType::F16,
    }
}

/// Everything in the format that `--dtype` names.
fn forced(dtype: DType) -> Formats {
    Formats::new(dtype, WeightFormat::Activations, format!("as --dtype {dtype} asks"))
}

/// The half-precision format for a model on a GPU, and why: the type of its files, or `usual` if
/// they are not in half precision.
fn half(model: &Model, device: Device, usual: DType) -> Result<(DType, String)> {
    let stored = stored(model)?;
    let own = match stored {
        Some(Stored::Float(dtype @ (DType::F16 | DType::BF16))) => Some(dtype),
        _ => None,
    };
    if sconce_models::overflows_f16(&model.config) {
        let why = if own == Some(DType::BF16) { "the type of the files" } else { "this architecture overflows f16" };
        return Ok((DType::BF16, why.into()));
    }
    if own.unwrap_or(usual) == DType::BF16 && !device.has_fast_bf16() {
        return Ok((DType::F16, format!("bf16 is slow on {device}")));
    }
    Ok(match (own, stored) {
        (Some(own), _) => (own, "the type of the files".into()),
        (None, Some(stored)) => (usual, format!("half precision; the files are in {stored}")),
        (None, None) => (usual, "half precision".into()),
    })
}

/// The format of the first matrix of the first layer; `None` if no layer has one.
pub(crate) fn stored(model: &Model) -> Result<Option<Stored>> {
    let names = model.store.names();
    for name in names.iter().filter(|name| name.ends_with("weight") && name.contains(".0.")) {
        // Norms are f32 beside weights of any format.
        if let Some((stored, _)) = model.store.shape(name)?.filter(|(_, dims)| dims.len() == 2) {
            return Ok(Some(stored));
        }
    }
    Ok(None)
}
