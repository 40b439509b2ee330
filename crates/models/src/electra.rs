//! ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT whose embeddings may be narrower than the
//! blocks.

use crate::bert::{Config, WORD_EMBEDDINGS};
use crate::block::Stack;
use crate::config::{defaults, parse};
use crate::head::{out, root, vocabulary};
use crate::{Backbone, Head, Result, Task};
use sconce_ops::{Activation, LayerNorm, Linear, Weights};
use serde_json::Value;

defaults! {
    struct EmbeddingConfig {
        embedding_size: usize = 128,
    }
}

/// The defaults of transformers are those of the small model.
fn read(config: &Value) -> Result<(Config, usize)> {
    let mut c: Config = parse(config)?;
    let missing = |name: &str| config.get(name).is_none();
    if missing("hidden_size") {
        c.hidden_size = 256;
    }
    if missing("num_attention_heads") {
        c.num_attention_heads = 4;
    }
    if missing("intermediate_size") {
        c.intermediate_size = 1024;
    }
    Ok((c, parse::<EmbeddingConfig>(config)?.embedding_size))
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let (c, width) = read(config)?;
    c.check()?;
    let w = root(w, "electra", WORD_EMBEDDINGS)?;
    let project = || Linear::load(&w.sub("embeddings_project"), width, c.hidden_size, true);
    Ok(Box::new(Stack {
        project: (width != c.hidden_size).then(project).transpose()?,
        ..c.stack(&w, c.limits(), width)?
    }))
}

/// Both heads use GELU, whatever hidden_act and summary_activation say, because the reference
/// hard-codes it.
pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let (c, width) = read(config)?;
    let hidden = c.hidden_size;
    let classifier = w.sub("classifier");
    Ok(match task {
        Task::Classify => {
            let dense = Linear::load(&classifier.sub("dense"), hidden, hidden, true)?.with(Activation::Gelu);
            Head::new(Some(dense), None, out(&classifier.sub("out_proj"), hidden, true)?)
        }
        Task::Tag => Head::new(None, None, out(&classifier, hidden, true)?),
        Task::Vocabulary => {
            let (g, lm_head) = (w.sub("generator_predictions"), w.sub("generator_lm_head"));
            let words = root(w, "electra", WORD_EMBEDDINGS)?.sub("embeddings.word_embeddings");
            let dense = Linear::load(&g.sub("dense"), hidden, width, true)?.with(Activation::Gelu);
            let norm = LayerNorm::load(&g.sub("LayerNorm"), width, c.layer_norm_eps, true)?;
            let out = vocabulary(&lm_head, &words, [c.vocab_size, width], &[(&lm_head, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}
