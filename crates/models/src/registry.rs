//! Maps `model_type` in `config.json` to the file that implements the architecture.

use crate::config::{is_bidirectional, refuse};
use crate::{Backbone, Error, Head, LmHead, Result, Seq2Seq, Task};
use crate::{
    bert, deberta, deberta_v2, distilbert, dual, electra, eurobert, falcon, gemma, gpt_neox, gpt2, gte, jina_bert,
    llama, modernbert, mpnet, nomic_bert, qwen, roberta, stablelm, static_model, t5, t5_decoder, xlm_roberta_flash,
};
use sconce_ops::Weights;
use serde_json::Value;

/// The functions of an architecture's file.
struct Architecture {
    /// The `model_type`s that the file implements.
    types: &'static [&'static str],
    backbone: fn(&Value, &Weights) -> Result<Box<dyn Backbone>>,
    /// Builds a task head. Called after `backbone`, with the same configuration.
    head: fn(Task, &Value, &Weights) -> Result<Head>,
    /// Builds the LM head; `None` if the architecture is not a language model.
    lm_head: Option<fn(&Value, &Weights) -> Result<LmHead>>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { types: &["bert"], backbone: bert::backbone, head: bert::head, lm_head: None },
    Architecture { types: &["distilbert"], backbone: distilbert::backbone, head: distilbert::head, lm_head: None },
    Architecture { types: &["electra"], backbone: electra::backbone, head: electra::head, lm_head: None },
    Architecture { types: &["eurobert"], backbone: llama::backbone, head: eurobert::head, lm_head: None },
    Architecture { types: &["new", "gte"], backbone: gte::backbone, head: gte::head, lm_head: None },
    Architecture { types: &["jina_bert"], backbone: jina_bert::backbone, head: bert::head, lm_head: None },
    Architecture { types: &["modernbert"], backbone: modernbert::backbone, head: modernbert::head, lm_head: None },
    Architecture { types: &["mpnet"], backbone: mpnet::backbone, head: mpnet::head, lm_head: None },
    Architecture { types: &["nomic_bert"], backbone: nomic_bert::backbone, head: nomic_bert::head, lm_head: None },
    Architecture {
        types: &["roberta", "xlm-roberta", "camembert"],
        backbone: roberta::backbone,
        head: roberta::head,
        lm_head: None,
    },
    Architecture {
        types: &["jina_embeddings_v3"],
        backbone: xlm_roberta_flash::backbone,
        head: xlm_roberta_flash::head,
        lm_head: None,
    },
    Architecture { types: &["t5", "mt5", "umt5"], backbone: t5::backbone, head: t5::head, lm_head: None },
    Architecture { types: &["deberta"], backbone: deberta::backbone, head: deberta::head, lm_head: None },
    Architecture { types: &["deberta-v2"], backbone: deberta_v2::backbone, head: deberta_v2::head, lm_head: None },
    Architecture { types: LLAMA, backbone: llama::backbone, head: llama::head, lm_head: Some(llama::lm_head) },
    Architecture {
        types: &["llama_bidirec", "bidirectional_pplx_qwen3"],
        backbone: llama::backbone,
        head: llama::head,
        lm_head: None,
    },
    Architecture {
        types: &["falcon", "RefinedWeb", "RefinedWebModel"],
        backbone: falcon::backbone,
        head: falcon::head,
        lm_head: Some(falcon::lm_head),
    },
    Architecture { types: GEMMA, backbone: gemma::backbone, head: gemma::head, lm_head: Some(gemma::lm_head) },
    Architecture { types: &["gpt2"], backbone: gpt2::backbone, head: gpt2::head, lm_head: Some(gpt2::lm_head) },
    Architecture {
        types: &["gpt_neox"],
        backbone: gpt_neox::backbone,
        head: gpt_neox::head,
        lm_head: Some(gpt_neox::lm_head),
    },
    Architecture { types: &["qwen"], backbone: qwen::backbone, head: qwen::head, lm_head: Some(qwen::lm_head) },
    Architecture {
        types: &["phi", "stablelm", "stablelm_epoch"],
        backbone: stablelm::backbone,
        head: stablelm::head,
        lm_head: Some(stablelm::lm_head),
    },
    Architecture { types: &["model2vec"], backbone: static_model::backbone, head: static_model::head, lm_head: None },
];

/// The model types with Llama's block, and the generations of Gemma.
const LLAMA: &[&str] = &["llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"];
const GEMMA: &[&str] = &["gemma", "gemma2", "gemma3", "gemma3_text"];

/// Sequence-to-sequence models: an encoder of the table above, with a decoder.
const SEQ2SEQ: &[(&[&str], LoadSeq2Seq)] = &[(&["t5", "mt5", "umt5"], t5_decoder::seq2seq)];
type LoadSeq2Seq = fn(&Value, &Weights) -> Result<Box<dyn Seq2Seq>>;

/// Builds the model that `config` describes. `config.json` selects the architecture, never the
/// model's name.
pub fn backbone(config: &Value, weights: &Weights) -> Result<Box<dyn Backbone>> {
    (architecture(config)?.backbone)(config, weights)
}

/// Builds the backbone under a sequence classification head: another one than [`backbone`] builds
/// where the head reads a decoder (T5).
pub fn sequence_backbone(config: &Value, weights: &Weights) -> Result<Box<dyn Backbone>> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match SEQ2SEQ.iter().any(|(types, _)| types.contains(&kind)) {
        true => t5_decoder::classifier(config, weights),
        false => backbone(config, weights),
    }
}

/// Whether [`backbone`] or [`crate::dual`] knows the architecture.
pub fn is_supported(config: &Value) -> bool {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    dual::is_dual(kind) || architecture(config).is_ok()
}

/// Builds the head for `task` from the files of the model.
pub fn head(task: Task, config: &Value, weights: &Weights) -> Result<Head> {
    (architecture(config)?.head)(task, config, &weights.of_head())
}

/// Builds the head of a language model used as reranker: logits of the answers `tokens`, at the last
/// token of a sequence.
pub fn answer_head(config: &Value, weights: &Weights, tokens: &[u32]) -> Result<Head> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    check_causal(config)?;
    match kind {
        "gemma" => gemma::answer_head(config, &weights.of_head(), tokens),
        kind if LLAMA.contains(&kind) => llama::answer_head(config, &weights.of_head(), tokens),
        _ => Err(Error::Config(format!(
            "model_type `{kind}` has no head for reranking by its answer; supported: {}, gemma",
            LLAMA.join(", ")
        ))),
    }
}

/// Builds the LM head of a language model.
pub fn lm_head(config: &Value, weights: &Weights) -> Result<LmHead> {
    let Architecture { lm_head, types, .. } = architecture(config)?;
    match lm_head {
        Some(lm_head) => {
            check_causal(config)?;
            lm_head(config, weights)
        }
        None => {
            let models: Vec<_> =
                ARCHITECTURES.iter().filter(|a| a.lm_head.is_some()).flat_map(|a| a.types).copied().collect();
            Err(Error::Config(format!("{} is not a language model; supported: {}", types[0], models.join(", "))))
        }
    }
}

/// Whether a language model was made an encoder: its attention is in both directions.
pub fn is_encoder(config: &Value) -> bool {
    [Some(config), config.get("text_config")].into_iter().flatten().any(is_bidirectional)
}

/// Fails if a language model that is to generate text was made an encoder.
fn check_causal(config: &Value) -> Result<()> {
    refuse(is_encoder(config), || {
        "the model has attention in both directions (is_causal, use_bidirectional_attention), so it cannot predict \
         the next token; use it for embeddings"
            .into()
    })
}

/// Builds a sequence-to-sequence model.
pub fn seq2seq(config: &Value, weights: &Weights) -> Result<Box<dyn Seq2Seq>> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match SEQ2SEQ.iter().find(|(types, _)| types.contains(&kind)) {
        Some((_, load)) => load(config, weights),
        None => {
            let known: Vec<_> = SEQ2SEQ.iter().flat_map(|(types, _)| *types).copied().collect();
            let what = format!(
                "model_type `{kind}` cannot generate text from text (sequence-to-sequence); supported: {}",
                known.join(", ")
            );
            Err(Error::Config(what))
        }
    }
}

/// Whether activations of the architecture are known to exceed the range of f16, so that half
/// precision must be bf16: T5's feed-forward layers, Gemma's scaled embeddings and residuals, and
/// the first tokens of Qwen2, dense and MoE.
pub fn overflows_f16(config: &Value) -> bool {
    let kind = |config: &Value| config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = config.get("text_config").map(kind).unwrap_or_default();
    let encoder = config.get("encoder_config").map(kind).unwrap_or_default();
    [kind(config), text, encoder].iter().any(|kind| {
        let kind = kind.as_str();
        SEQ2SEQ.iter().any(|(types, _)| types.contains(&kind))
            || GEMMA.contains(&kind)
            || ["qwen2", "qwen2_moe"].contains(&kind)
    })
}

/// Whether an unused tensor may be ignored: the head of another task, or a buffer that training
/// saved.
pub fn is_ignorable(name: &str) -> bool {
    const HEADS: [&str; 19] = [
        "pooler.",
        "cls.",
        "lm_head.",
        "embed_out.",
        "classifier.",
        "pre_classifier.",
        "qa_outputs.",
        "vocab_",
        "generator_",
        "discriminator_predictions.",
        "mask_predictions.",
        "lm_predictions.",
        "head.",
        "decoder.",
        "score.",
        "sparse_linear.",
        "colbert_linear.",
        "loss_fct.",
        "criterion.",
    ];
    const IMAGES: [&str; 2] = ["vision_tower.", "multi_modal_projector."];
    const BUFFERS: [&str; 4] = ["position_ids", "token_type_ids", "inv_freq", "num_batches_tracked"];
    HEADS.iter().chain(&IMAGES).any(|head| name.starts_with(head) || name.contains(&format!(".{head}")))
        || BUFFERS.iter().any(|buffer| name.ends_with(buffer))
}

/// The `model_type` in `config.json`, or the one whose code the model needs.
pub fn model_type(config: &Value) -> Option<&str> {
    let class = config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default();
    let declared = config.get("model_type").and_then(Value::as_str);
    // JinaBERT v2 declares `bert` but has its own code, also under another class (its ColBERT).
    let alibi = config.get("position_embedding_type").and_then(Value::as_str) == Some("alibi");
    let jina = class.starts_with("JinaBert") || declared == Some("bert") && alibi;
    if jina { Some("jina_bert") } else { declared }
}

/// Every `model_type` in the table.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().flat_map(|a| a.types).copied()
}

/// Whether the architecture of a `model_type` has an LM head.
pub(crate) fn has_lm_head(kind: &str) -> bool {
    ARCHITECTURES.iter().any(|a| a.lm_head.is_some() && a.types.contains(&kind))
}

/// Whether a `model_type` is of a sequence-to-sequence model.
pub(crate) fn has_decoder(kind: &str) -> bool {
    SEQ2SEQ.iter().any(|(types, _)| types.contains(&kind))
}

fn architecture(config: &Value) -> Result<&'static Architecture> {
    let Some(kind) = model_type(config) else {
        return Err(Error::Config("no model_type; is this a transformers model?".into()));
    };
    ARCHITECTURES.iter().find(|a| a.types.contains(&kind)).ok_or_else(|| {
        let known: Vec<_> = ARCHITECTURES.iter().flat_map(|a| a.types).copied().collect();
        Error::Config(format!("model_type `{kind}` is not supported; supported: {}", known.join(", ")))
    })
}
