//! Detects which transformers model a GGUF file holds. llama.cpp has fewer architecture names than
//! transformers; where one covers several, the content of the file decides.

use super::header::{Tensor, quoted};
use super::metadata::Metadata;
use crate::FileError;
use std::collections::BTreeMap;

/// A model family of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Also Mistral: without its sliding window, which GGUF files of this architecture do not
    /// store, it is the same model.
    Llama,
    Mixtral,
    Qwen,
    Qwen2,
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    Phi,
    Phi3,
    StableLm,
    /// With one norm before a block, or two in parallel.
    Falcon {
        norms: u8,
    },
    Gemma,
    Gemma2,
    Gemma3,
    /// EmbeddingGemma: Gemma 3 with attention in both directions, perhaps with the Dense modules of
    /// sentence-transformers.
    GemmaEmbedding,
    Gpt2,
    GptNeoX,
    /// Encoder alone or with a decoder; a plain or gated MLP; a relative attention bias in every
    /// layer (UMT5) or only in the first.
    T5 {
        decoder: bool,
        gated: bool,
        bias_per_layer: bool,
    },
    Bert,
    Roberta,
    XlmRoberta,
    DistilBert,
    NomicBert,
    NomicBertMoe,
    ModernBert,
    /// The variant for code, which normalizes queries and keys; the gate of the MLP as a matrix of
    /// its own, as in files before 2025.
    JinaBertV2 {
        code: bool,
        split: bool,
    },
    /// jina-embeddings-v3 without its tasks, whose updates are in files of their own.
    JinaBertV3,
}

/// llama.cpp's architecture names. `llama` is also Mistral and Mixtral, `bert` also RoBERTa,
/// XLM-RoBERTa and DistilBERT.
pub const NAMES: [&str; 24] = [
    "llama",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "phi2",
    "phi3",
    "stablelm",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma-embedding",
    "gpt2",
    "gptneox",
    "t5",
    "t5encoder",
    "bert",
    "nomic-bert",
    "nomic-bert-moe",
    "modern-bert",
    "jina-bert-v2",
    "jina-bert-v3",
];

/// The architecture name in `metadata`, and its family.
pub(super) fn find<'a>(
    metadata: Metadata<'a>,
    tensors: &BTreeMap<String, (usize, Tensor)>,
) -> Result<(&'a str, Family), FileError> {
    let kind = metadata.str("general.type")?;
    if let Some(kind) = kind.filter(|kind| *kind != "model") {
        return Err(
            metadata.fault(format!("is a GGUF file of the type {} (general.type); a model is needed", quoted(kind)))
        );
    }
    let missing = || metadata.fault("has no general.architecture, so it may not be a model");
    let name = metadata.str("general.architecture")?.ok_or_else(missing)?;
    let has = |tensor: &str| tensors.contains_key(tensor);
    let family = match name {
        "llama" if metadata.u64("llama.expert_count")?.unwrap_or(0) > 0 => Family::Mixtral,
        "llama" => Family::Llama,
        "qwen" => Family::Qwen,
        "qwen2" => Family::Qwen2,
        "qwen2moe" => Family::Qwen2Moe,
        "qwen3" => Family::Qwen3,
        "qwen3moe" => Family::Qwen3Moe,
        "phi2" => Family::Phi,
        "phi3" => Family::Phi3,
        "stablelm" => Family::StableLm,
        "falcon" => Family::Falcon { norms: if has("blk.0.attn_norm_2.weight") { 2 } else { 1 } },
        "gemma" => Family::Gemma,
        "gemma2" => Family::Gemma2,
        "gemma3" => Family::Gemma3,
        "gemma-embedding" => Family::GemmaEmbedding,
        "gpt2" => Family::Gpt2,
        "gptneox" => Family::GptNeoX,
        "t5" | "t5encoder" => Family::T5 {
            decoder: name == "t5",
            gated: has("enc.blk.0.ffn_gate.weight"),
            bias_per_layer: has("enc.blk.1.attn_rel_b.weight"),
        },
        // One name for the BERT variants: the tokenizer tells them apart, and DistilBERT has no
        // token types.
        "bert" => match metadata.str("tokenizer.ggml.model")?.unwrap_or("bert") {
            "gpt2" => Family::Roberta,
            "t5" => Family::XlmRoberta,
            "bert" if has("token_types.weight") => Family::Bert,
            "bert" => Family::DistilBert,
            other => {
                let what = format!("is a BERT with the tokenizer {}; bert, gpt2 and t5 are supported", quoted(other));
                return Err(metadata.fault(what));
            }
        },
        "nomic-bert" => Family::NomicBert,
        "nomic-bert-moe" => Family::NomicBertMoe,
        "modern-bert" => Family::ModernBert,
        "jina-bert-v2" => {
            Family::JinaBertV2 { code: has("blk.0.attn_norm_2.weight"), split: has("blk.0.ffn_gate.weight") }
        }
        "jina-bert-v3" => Family::JinaBertV3,
        other => {
            let known = NAMES.join(", ");
            let what = format!("holds a model of the architecture {}; these are supported: {known}", quoted(other));
            return Err(metadata.fault(what));
        }
    };
    Ok((name, family))
}
