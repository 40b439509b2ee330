//! EuroBERT (Boizard et al. 2025, arXiv:2503.05500): Llama's block (`llama.rs`) with attention in
//! both directions, under heads of its own.

use crate::config::{default_usize, parse};
use crate::head::{out, root, vocabulary};
use crate::llama::EMBED_TOKENS;
use crate::{Error, Head, Result, Task};
use sconce_ops::{Activation, Linear, Pooling, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    #[serde(default = "default_usize::<128_256>")]
    vocab_size: usize,
    hidden_size: usize,
    #[serde(default)]
    mlp_bias: bool,
    classifier_pooling: Option<String>,
    /// The older spelling.
    clf_pooling: Option<String>,
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let n = c.hidden_size;
    let classifier = || out(&w.sub("classifier"), n, true);
    Ok(match task {
        Task::Classify => {
            let pooling = c.classifier_pooling.or(c.clf_pooling);
            let (pooling, late) = match pooling.as_deref().unwrap_or("late") {
                "bos" => (Pooling::Cls, false),
                "mean" => (Pooling::Mean, false),
                "late" => (Pooling::Mean, true),
                other => return Err(Error::Config(format!("classifier_pooling `{other}` is not supported"))),
            };
            let dense = Linear::load(&w.sub("dense"), n, n, true)?.with(Activation::Gelu);
            Head { pooling, late, ..Head::new(Some(dense), None, classifier()?) }
        }
        Task::Tag => Head::new(None, None, classifier()?),
        Task::Vocabulary => {
            let (lm_head, words) = (w.sub("lm_head"), root(w, "model", EMBED_TOKENS)?.sub("embed_tokens"));
            let biases: &[_] = if c.mlp_bias { &[(&lm_head, "bias")] } else { &[] };
            Head::new(None, None, vocabulary(&lm_head, &words, [c.vocab_size, n], biases)?)
        }
    })
}
