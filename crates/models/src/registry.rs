//! Which file reads which configuration: one line an architecture.

use crate::{Encoder, Error, Head, Result, Task};
use crate::{
    bert, deberta, deberta_v2, distilbert, electra, gte, jina_bert, modernbert, mpnet, nomic_bert, roberta,
    static_model, t5,
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
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { types: &["bert"], encoder: bert::encoder, head: bert::head },
    Architecture { types: &["distilbert"], encoder: distilbert::encoder, head: distilbert::head },
    Architecture { types: &["electra"], encoder: electra::encoder, head: electra::head },
    Architecture { types: &["new", "gte"], encoder: gte::encoder, head: gte::head },
    Architecture { types: &["jina_bert"], encoder: jina_bert::encoder, head: bert::head },
    Architecture { types: &["modernbert"], encoder: modernbert::encoder, head: modernbert::head },
    Architecture { types: &["mpnet"], encoder: mpnet::encoder, head: mpnet::head },
    Architecture { types: &["nomic_bert"], encoder: nomic_bert::encoder, head: nomic_bert::head },
    Architecture { types: &["roberta", "xlm-roberta", "camembert"], encoder: roberta::encoder, head: roberta::head },
    Architecture { types: &["t5", "mt5", "umt5"], encoder: t5::encoder, head: t5::head },
    Architecture { types: &["deberta"], encoder: deberta::encoder, head: deberta::head },
    Architecture { types: &["deberta-v2"], encoder: deberta_v2::encoder, head: deberta_v2::head },
    Architecture { types: &["model2vec"], encoder: static_model::encoder, head: static_model::head },
];

/// Makes the encoder that `config` describes. The architecture is what the configuration says, never the model's name.
pub fn encoder(config: &Value, weights: &Weights) -> Result<Box<dyn Encoder>> {
    (architecture(config)?.encoder)(config, weights)
}

/// Makes the head for `task` that stands behind the encoder in the same files.
pub fn head(task: Task, config: &Value, weights: &Weights) -> Result<Head> {
    (architecture(config)?.head)(task, config, weights)
}

/// Whether a tensor that nothing read may be left alone: another task's head, or a buffer that training saved.
pub fn spare(name: &str) -> bool {
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
    const BUFFERS: [&str; 4] = ["position_ids", "token_type_ids", "inv_freq", "num_batches_tracked"];
    HEADS.iter().any(|head| name.starts_with(head) || name.contains(&format!(".{head}")))
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
