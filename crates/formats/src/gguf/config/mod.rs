//! Builds transformers' `config.json` from the keys of a GGUF file. Values that the converter omits
//! are derived from the tensors, or are the same for every model of the family.

mod decoders;
mod encoders;
mod rope;

use super::Gguf;
use super::family::Family;
use super::header::{Tensor, quoted};
use super::metadata::Metadata;
use super::unconvert::{Heads, Source};
use crate::FileError;
use serde_json::{Map, Value, json};

type Config = Map<String, Value>;

/// Keys of features that our models do not implement. If one is set and not 0, the model would give
/// wrong results, so it is refused.
const UNSUPPORTED: [&str; 8] = [
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "nextn_predict_layers",
];

pub(super) fn config(gguf: &Gguf) -> Result<Value, FileError> {
    let keys = Keys { metadata: gguf.metadata(), architecture: &gguf.architecture, gguf };
    for name in UNSUPPORTED {
        if keys.float(name)?.is_some_and(|n| n != 0.0) {
            return Err(keys.fault(format!("sets {}, which is not supported", quoted(&keys.name(name)))));
        }
    }
    let config = match gguf.family {
        Family::Llama => decoders::llama(&keys),
        Family::Mixtral => decoders::mixtral(&keys),
        Family::Qwen => decoders::qwen(&keys),
        Family::Qwen2 => decoders::qwen2(&keys),
        Family::Qwen2Moe => decoders::qwen2_moe(&keys),
        Family::Qwen3 => decoders::qwen3(&keys),
        Family::Qwen3Moe => decoders::qwen3_moe(&keys),
        Family::Phi => decoders::phi(&keys),
        Family::Phi3 => decoders::phi3(&keys),
        Family::StableLm => decoders::stablelm(&keys),
        Family::Falcon { norms } => decoders::falcon(&keys, norms),
        Family::Gemma => decoders::gemma(&keys),
        Family::Gemma2 => decoders::gemma2(&keys),
        Family::Gemma3 => decoders::gemma3(&keys),
        Family::GemmaEmbedding => decoders::gemma_embedding(&keys),
        Family::Gpt2 => decoders::gpt2(&keys),
        Family::GptNeoX => decoders::gpt_neox(&keys),
        Family::T5 { decoder, gated, bias_per_layer } => encoders::t5(&keys, decoder, gated, bias_per_layer),
        Family::Bert => encoders::bert(&keys, "bert", "Bert"),
        Family::Roberta => encoders::bert(&keys, "roberta", "Roberta"),
        Family::XlmRoberta => encoders::bert(&keys, "xlm-roberta", "XLMRoberta"),
        Family::DistilBert => encoders::distilbert(&keys),
        Family::NomicBert => encoders::nomic_bert(&keys, false),
        Family::NomicBertMoe => encoders::nomic_bert(&keys, true),
        Family::ModernBert => encoders::modern_bert(&keys),
        Family::JinaBertV2 { .. } => encoders::jina_bert(&keys),
        Family::JinaBertV3 => encoders::jina_v3(&keys),
    }?;
    Ok(Value::Object(config))
}

/// The attention heads.
pub(super) fn heads(metadata: Metadata, architecture: &str) -> Result<Heads, FileError> {
    let number = |name: &str| uniform(metadata, &format!("{architecture}.{name}"));
    let need = |name: &str, found: Option<u64>| {
        found
            .and_then(|n| usize::try_from(n).ok())
            .filter(|&n| n > 0)
            .ok_or_else(|| missing(metadata, architecture, name))
    };
    let queries = need("attention.head_count", number("attention.head_count")?)?;
    let keys = match number("attention.head_count_kv")? {
        None => queries,
        found => need("attention.head_count_kv", found)?,
    };
    let size = match number("attention.key_length")? {
        None => need("embedding_length", number("embedding_length")?.map(|width| width / queries as u64))?,
        found => need("attention.key_length", found)?,
    };
    Ok(Heads { queries, keys, size })
}

/// An integer, or an array with the same integer for every layer.
fn uniform(metadata: Metadata, key: &str) -> Result<Option<u64>, FileError> {
    if !metadata.is_array(key) {
        return metadata.u64(key);
    }
    let mut each = metadata.i32s(key)?.into_iter().flatten();
    match each.next().map(|first| (u64::try_from(first), each.all(|n| n == first))) {
        Some((Ok(number), true)) => Ok(Some(number)),
        _ => Err(metadata.fault(format!("has a {} that differs between layers, which is not supported", quoted(key)))),
    }
}

fn missing(metadata: Metadata, architecture: &str, name: &str) -> FileError {
    metadata.fault(format!(
        "has no {} that can be used; convert the model again",
        quoted(&format!("{architecture}.{name}"))
    ))
}

/// The keys of one architecture, with its tensors.
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'a str,
    gguf: &'a Gguf,
}

impl Keys<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn fault(&self, what: impl Into<String>) -> FileError {
        self.metadata.fault(what)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, FileError> {
        uniform(self.metadata, &self.name(name))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, FileError> {
        self.metadata.f64(&self.name(name))
    }

    fn need(&self, name: &str) -> Result<u64, FileError> {
        self.number(name)?.filter(|&n| n > 0).ok_or_else(|| missing(self.metadata, self.architecture, name))
    }

    fn need_float(&self, name: &str) -> Result<f64, FileError> {
        self.float(name)?.ok_or_else(|| missing(self.metadata, self.architecture, name))
    }

    fn heads(&self) -> Result<Heads, FileError> {
        let heads = heads(self.metadata, self.architecture)?;
        match self.number("attention.value_length")? {
            Some(n) if n != heads.size as u64 => Err(self.fault(format!(
                "has key heads of size {} and value heads of size {n}, which is not supported",
                heads.size
            ))),
            _ => Ok(heads),
        }
    }

    /// Number of layers, checked against the number of tensors: it bounds the lists built from it.
    fn layers(&self) -> Result<usize, FileError> {
        let (layers, tensors) = (self.need("block_count")?, self.gguf.tensors.len());
        usize::try_from(layers)
            .ok()
            .filter(|&n| n <= tensors)
            .ok_or_else(|| self.fault(format!("says that it has {layers} layers, but holds {tensors} tensors")))
    }

    /// Whether the file has a tensor of this name (the file's name).
    fn has(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }

    fn stored(&self, name: &str) -> Result<&Tensor, FileError> {
        let found = self.gguf.tensors.get(name).map(|(_, tensor)| tensor);
        found.ok_or_else(|| self.fault(format!("holds no {}; the model is incomplete", quoted(name))))
    }

    /// Rows (output features) of a matrix, by its name in the file.
    fn rows(&self, name: &str) -> Result<usize, FileError> {
        match self.stored(name)?.dims[..] {
            [.., rows, _] => Ok(rows),
            _ => Ok(1),
        }
    }

    /// The values of a tensor that only the configuration reads.
    fn config_tensor(&self, name: &str) -> Result<Option<Vec<f32>>, FileError> {
        let Some(source) = self.gguf.index.config_only.get(name) else { return Ok(None) };
        let Source { part, kind, .. } = source;
        if kind.id != super::ggml::F32 {
            return Err(self.fault(format!("holds {} as {}; only F32 is supported", quoted(name), kind.name)));
        }
        let bytes = source.read(&self.gguf.files[*part].1);
        Ok(Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    /// The id of a special token, or null.
    fn token(&self, name: &str) -> Result<Value, FileError> {
        Ok(json!(self.metadata.u64(&format!("tokenizer.ggml.{name}_token_id"))?))
    }

    /// Keys of every model: type, class, vocabulary size and special token ids.
    fn base(&self, model_type: &str, class: &str) -> Result<Config, FileError> {
        Ok(object(json!({
            "model_type": model_type,
            "architectures": [class],
            "vocab_size": self.rows("token_embd.weight")?,
            "bos_token_id": self.token("bos")?,
            "eos_token_id": self.token("eos")?,
            "pad_token_id": self.token("padding")?,
        })))
    }
}

/// Which of so many layers has full attention, unless the file says how many.
#[derive(Clone, Copy)]
enum Every {
    First(u64),
    Last(u64),
}

/// The kind of attention of each layer: all but one of every few have a sliding window, or as the
/// file lists them.
fn layer_types(keys: &Keys, window: u64, full: Every) -> Result<Vec<&'static str>, FileError> {
    let (layers, key) = (keys.layers()?, keys.name("attention.sliding_window_pattern"));
    let named = |local: bool| if local && window > 0 { "sliding_attention" } else { "full_attention" };
    if keys.metadata.is_array(&key) {
        let listed: Vec<_> = keys.metadata.bools(&key)?.into_iter().flatten().map(named).collect();
        return if listed.len() == layers {
            Ok(listed)
        } else {
            Err(keys.fault(format!("lists {} layers in `{key}`, of {layers}", listed.len())))
        };
    }
    let (Every::First(usual) | Every::Last(usual)) = full;
    let every = keys.metadata.u64(&key)?.unwrap_or(usual).max(1);
    let place = if matches!(full, Every::First(_)) { 0 } else { every - 1 };
    Ok((0..layers as u64).map(|layer| named(layer % every != place)).collect())
}

fn object(value: Value) -> Config {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
