//! MPNet (Song et al. 2020, arXiv:2004.09297): BERT's blocks under other names, positions that
//! start after the padding id, and one table of T5's relative position biases for all layers.

use crate::bert::WORD_EMBEDDINGS;
use crate::block::{Embeddings, Names, PostNorm, Stack};
use crate::config::{defaults, parse, refuse};
use crate::head::root;
use crate::roberta::fairseq;
use crate::{Backbone, Head, Limits, Positions, Result, Task, bert};
use sconce_ops::{Bias, Weights};
use serde_json::Value;

defaults! {
    struct Relative {
        relative_attention_num_buckets: usize = 32,
    }
}

const NAMES: Names = Names {
    qkv: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

/// The reference hard-codes the padding id and ignores pad_token_id.
const PADDING: u32 = 1;

/// The distance from which keys share the last bucket, and the number of buckets. The reference
/// reads neither from the configuration.
const MAX_DISTANCE: usize = 128;
const BUCKETS: usize = 32;

fn read(config: &Value) -> Result<bert::Config> {
    let mut c: bert::Config = parse(config)?;
    if config.get("vocab_size").is_none() {
        c.vocab_size = 30527;
    }
    Ok(c)
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c = read(config)?;
    c.check()?;
    let shape = c.shape()?;
    let Relative { relative_attention_num_buckets: rows } = parse(config)?;
    refuse(rows != BUCKETS, || {
        format!("relative_attention_num_buckets {rows} is not supported; MPNet was published with {BUCKETS}")
    })?;
    let positions = c.max_position_embeddings.saturating_sub(PADDING as usize + 1);
    let limits =
        Limits { vocabulary: c.vocab_size, positions, types: None, counting: Positions::AfterPadding(PADDING) };
    let w = root(w, "mpnet", WORD_EMBEDDINGS)?;
    let table = w.sub("encoder.relative_attention_bias").values("weight", &[rows, shape.heads])?;
    let bias = Bias::Buckets { table: table.into(), far: MAX_DISTANCE, both: true };
    let layer = |i| {
        let mut block = PostNorm::load(&w.sub("encoder.layer").sub(i), &shape, &NAMES)?;
        block.attention.bias = bias.clone();
        Ok(block)
    };
    let embeddings = Embeddings::load(&w.sub("embeddings"), &limits, Some(c.max_position_embeddings), &shape)?;
    let layers = (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?;
    Ok(Box::new(Stack::new(embeddings, layers, c.hidden_size, limits)))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c = read(config)?;
    fairseq(task, w, "mpnet", [c.vocab_size, c.hidden_size], c.layer_norm_eps)
}
