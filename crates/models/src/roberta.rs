//! RoBERTa (Liu et al. 2019, arXiv:1907.11692), XLM-RoBERTa and CamemBERT: BERT's blocks, positions
//! that start after the padding id, and other heads.

use crate::bert::{Config, WORD_EMBEDDINGS};
use crate::config::{defaults, parse, refuse};
use crate::head::{out, root, vocabulary};
use crate::{Backbone, Head, Limits, Positions, Result, Task, xlm_roberta_flash};
use sconce_ops::{Activation, LayerNorm, Linear, Weights};
use serde_json::Value;

defaults! {
    struct Padding {
        pad_token_id: u32 = 1,
    }
}

/// RoBERTa's vocabulary size differs from BERT's default; the two others have BERT's.
fn read(config: &Value) -> Result<Config> {
    let mut c: Config = parse(config)?;
    if config.get("vocab_size").is_none() && config.get("model_type").and_then(Value::as_str) == Some("roberta") {
        c.vocab_size = 50265;
    }
    Ok(c)
}

/// The longest sequence and the position ids, for a table of `rows` rows.
pub(crate) fn positions(rows: usize, padding: u32) -> Result<(usize, Positions)> {
    // No token has a position up to and including the padding id.
    let positions = rows.saturating_sub(padding as usize).saturating_sub(1);
    refuse(positions == 0, || {
        format!("max_position_embeddings {rows} leaves no position after pad_token_id {padding}")
    })?;
    Ok((positions, Positions::AfterPadding(padding)))
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    if xlm_roberta_flash::is_layout(w)? {
        return xlm_roberta_flash::backbone(config, w);
    }
    let c = read(config)?;
    c.check()?;
    let Padding { pad_token_id: padding } = parse(config)?;
    let (positions, counting) = positions(c.max_position_embeddings, padding)?;
    let limits = Limits { positions, counting, ..c.limits() };
    Ok(Box::new(c.stack(&root(w, "roberta", WORD_EMBEDDINGS)?, limits, c.hidden_size)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c = read(config)?;
    fairseq(task, w, "roberta", [c.vocab_size, c.hidden_size], c.layer_norm_eps)
}

/// The heads of fairseq, which MPNet has too: dense, tanh and `out_proj` on the first token;
/// `lm_head`.
pub(crate) fn fairseq(task: Task, w: &Weights, prefix: &str, dims: [usize; 2], eps: f32) -> Result<Head> {
    let hidden = dims[1];
    let dense = |w: Weights| Linear::load(&w.sub("dense"), hidden, hidden, true);
    let (classifier, lm) = (w.sub("classifier"), w.sub("lm_head"));
    Ok(match task {
        Task::Classify => {
            let out = out(&classifier.sub("out_proj"), hidden, true)?;
            Head::new(Some(dense(classifier)?.with(Activation::Tanh)), None, out)
        }
        Task::Tag => Head::new(None, None, out(&classifier, hidden, true)?),
        Task::Vocabulary => {
            let words = root(w, prefix, WORD_EMBEDDINGS)?.sub("embeddings.word_embeddings");
            let decoder = lm.sub("decoder");
            let norm = LayerNorm::load(&lm.sub("layer_norm"), hidden, eps, true)?;
            let out = vocabulary(&decoder, &words, dims, &[(&lm, "bias"), (&decoder, "bias")])?;
            // Exact GELU whatever hidden_act says, as in the reference.
            Head::new(Some(dense(lm)?.with(Activation::Gelu)), Some(norm), out)
        }
    })
}
