//! Which file reads which configuration: one line an architecture.

use crate::{Encoder, Error, Head, LmHead, Result, Seq2Seq, Task};
use crate::{
    bert, deberta, deberta_v2, distilbert, electra, falcon, gemma, gpt2, gte, jina_bert, llama, modernbert, mpnet,
    nomic_bert, roberta, stablelm, static_model, t5, t5_decoder,
};
use sconce_ops::Weights;
use serde_json::Value;

/// What a file offers.
struct Architecture {
    /// The `model_type`s it reads.
    types: &'static [&'static str],
    encoder: fn(&Value, &Weights) -> Result<Box<dyn Encoder>>,
    /// The heads it knows; asked after the encoder, with the same configuration.
    head: fn(Task, &Value, &Weights) -> Result<Head>,
    /// Of language models, the head that tells the next token.
    next: Option<fn(&Value, &Weights) -> Result<LmHead>>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { types: &["bert"], encoder: bert::encoder, head: bert::head, next: None },
    Architecture { types: &["distilbert"], encoder: distilbert::encoder, head: distilbert::head, next: None },
    Architecture { types: &["electra"], encoder: electra::encoder, head: electra::head, next: None },
    Architecture { types: &["new", "gte"], encoder: gte::encoder, head: gte::head, next: None },
    Architecture { types: &["jina_bert"], encoder: jina_bert::encoder, head: bert::head, next: None },
    Architecture { types: &["modernbert"], encoder: modernbert::encoder, head: modernbert::head, next: None },
    Architecture { types: &["mpnet"], encoder: mpnet::encoder, head: mpnet::head, next: None },
    Architecture { types: &["nomic_bert"], encoder: nomic_bert::encoder, head: nomic_bert::head, next: None },
    Architecture {
        types: &["roberta", "xlm-roberta", "camembert"],
        encoder: roberta::encoder,
        head: roberta::head,
        next: None,
    },
    Architecture { types: &["t5", "mt5", "umt5"], encoder: t5::encoder, head: t5::head, next: None },
    Architecture { types: &["deberta"], encoder: deberta::encoder, head: deberta::head, next: None },
    Architecture { types: &["deberta-v2"], encoder: deberta_v2::encoder, head: deberta_v2::head, next: None },
    Architecture { types: LLAMA, encoder: llama::encoder, head: llama::head, next: Some(llama::next) },
    Architecture {
        types: &["falcon", "RefinedWeb", "RefinedWebModel"],
        encoder: falcon::encoder,
        head: falcon::head,
        next: Some(falcon::next),
    },
    Architecture { types: GEMMA, encoder: gemma::encoder, head: gemma::head, next: Some(gemma::next) },
    Architecture { types: &["gpt2"], encoder: gpt2::encoder, head: gpt2::head, next: Some(gpt2::next) },
    Architecture {
        types: &["phi", "stablelm", "stablelm_epoch"],
        encoder: stablelm::encoder,
        head: stablelm::head,
        next: Some(stablelm::next),
    },
    Architecture { types: &["model2vec"], encoder: static_model::encoder, head: static_model::head, next: None },
];

/// Those with Llama's block, and the generations of Gemma.
const LLAMA: &[&str] = &["llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"];
const GEMMA: &[&str] = &["gemma", "gemma2", "gemma3", "gemma3_text"];

/// Those that read a text and write another: an encoder of the table above, with a decoder.
const SEQ2SEQ: &[(&[&str], Whole)] = &[(&["t5", "mt5", "umt5"], t5_decoder::seq2seq)];
type Whole = fn(&Value, &Weights) -> Result<Box<dyn Seq2Seq>>;

/// Makes the encoder that `config` describes. The architecture is what the configuration says, never the model's name.
pub fn encoder(config: &Value, weights: &Weights) -> Result<Box<dyn Encoder>> {
    (architecture(config)?.encoder)(config, weights)
}

/// Makes the head for `task` that stands behind the encoder in the same files.
pub fn head(task: Task, config: &Value, weights: &Weights) -> Result<Head> {
    (architecture(config)?.head)(task, config, &weights.of_head())
}

/// Makes the head of a language model that answers with one of two words: a logit of each, at a sequence's last token.
pub fn binary_head(config: &Value, weights: &Weights, words: [u32; 2]) -> Result<Head> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match LLAMA.contains(&kind) {
        true => llama::binary_head(config, &weights.of_head(), words),
        false => Err(Error::Config(format!("model_type `{kind}` is not asked for one of two words"))),
    }
}

/// Makes the head of a language model.
pub fn lm_head(config: &Value, weights: &Weights) -> Result<LmHead> {
    let Architecture { next, types, .. } = architecture(config)?;
    match next {
        Some(next) => next(config, weights),
        None => {
            let models: Vec<_> =
                ARCHITECTURES.iter().filter(|a| a.next.is_some()).flat_map(|a| a.types).copied().collect();
            Err(Error::Config(format!("{} is no language model; these are: {}", types[0], models.join(", "))))
        }
    }
}

/// Makes the whole of a model that reads a text and writes another.
pub fn seq2seq(config: &Value, weights: &Weights) -> Result<Box<dyn Seq2Seq>> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match SEQ2SEQ.iter().find(|(types, _)| types.contains(&kind)) {
        Some((_, whole)) => whole(config, weights),
        None => {
            let known: Vec<_> = SEQ2SEQ.iter().flat_map(|(types, _)| *types).copied().collect();
            let what = format!("model_type `{kind}` does not make texts of texts; these do: {}", known.join(", "));
            Err(Error::Config(what))
        }
    }
}

/// Whether a tensor that nothing read may be left alone: another task's head, or a buffer that training saved.
pub fn is_ignorable(name: &str) -> bool {
    const HEADS: [&str; 18] = [
        "pooler.",
        "cls.",
        "lm_head.",
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

fn architecture(config: &Value) -> Result<&'static Architecture> {
    let class = config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default();
    let declared = config.get("model_type").and_then(Value::as_str);
    // Jina's second generation calls itself `bert` and has code of its own, also under another class (its ColBERT).
    let alibi = config.get("position_embedding_type").and_then(Value::as_str) == Some("alibi");
    let jina = class.starts_with("JinaBert") || declared == Some("bert") && alibi;
    let kind = if jina { Some("jina_bert") } else { declared };
    let Some(kind) = kind else {
        return Err(Error::Config("no model_type; is this a transformers model?".into()));
    };
    ARCHITECTURES.iter().find(|a| a.types.contains(&kind)).ok_or_else(|| {
        let known: Vec<_> = ARCHITECTURES.iter().flat_map(|a| a.types).copied().collect();
        Error::Config(format!("model_type `{kind}` is not supported; these are: {}", known.join(", ")))
    })
}
