//! Falcon (Almazrouei et al. 2023, arXiv:2311.16867): parallel attention and MLP, with multi-query
//! attention (7B) or grouped-query attention (40B, 180B, and the 11B of Falcon 2). The RefinedWeb
//! models have ALiBi and sequential blocks.

use crate::block::{Norm, alibi_slopes};
use crate::config::{activation, context, default_true, default_usize, head_size, parse, ten_to_minus};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::rope::{Rope, Scaling};
use crate::{Backbone, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Bias, Linear, Rotary, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_kv_heads: Option<usize>,
    ffn_hidden_size: Option<usize>,
    #[serde(default = "default_usize::<2048>")]
    max_position_embeddings: usize,
    #[serde(default = "ten_to_minus::<5>")]
    layer_norm_epsilon: f32,
    activation: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    #[serde(default = "default_true")]
    multi_query: bool,
    #[serde(default = "default_true")]
    parallel_attn: bool,
    #[serde(default)]
    new_decoder_architecture: bool,
    num_ln_in_parallel_attn: Option<usize>,
    #[serde(default)]
    bias: bool,
    #[serde(default)]
    alibi: bool,
    #[serde(default = "default_true")]
    tie_word_embeddings: bool,
}

impl Config {
    fn heads(&self) -> Result<Heads> {
        let count = self.num_attention_heads;
        let kv_heads = match (self.new_decoder_architecture, self.multi_query) {
            (true, _) => self.num_kv_heads.unwrap_or(count),
            (false, true) => 1,
            (false, false) => count,
        };
        Heads::checked(count, kv_heads, head_size(self.hidden_size, count)?)
    }
}

const WORD_EMBEDDINGS: &str = "word_embeddings.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let (heads, n) = (c.heads()?, c.hidden_size);
    let w = root(w, "transformer", WORD_EMBEDDINGS)?;
    let positions = context(config, c.max_position_embeddings);
    let scaling = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
    let rotary = Rope {
        theta: scaling.and_then(|s| s.rope_theta).or(c.rope_theta).unwrap_or(10_000.0),
        dims: heads.size,
        positions,
        trained: c.max_position_embeddings,
        original: None,
        scaling,
    };
    let rotary = if c.alibi { None } else { Some(rotary.rotary(&w)?) };
    let load = |i| block(&w.sub("h").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("word_embeddings"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::layer(&w.sub("ln_f"), n, c.layer_norm_epsilon, true)?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection: None,
        causal: true,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "Falcon"))
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let embed_tokens = root(w, "transformer", WORD_EMBEDDINGS)?.sub("word_embeddings");
    head::lm_head(w, &embed_tokens, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Option<Rotary>, layer: usize) -> Result<Block> {
    let (a, m, n) = (w.sub("self_attention"), w.sub("mlp"), c.hidden_size);
    let norm = |name| Norm::layer(&w.sub(name), n, c.layer_norm_epsilon, true);
    let (parallel, two_norms) = match c.new_decoder_architecture {
        true => (true, c.num_ln_in_parallel_attn.unwrap_or(2) == 2),
        false => (c.parallel_attn, false),
    };
    let (attention_norm, layout) = match (parallel, two_norms) {
        (true, true) => (norm("ln_attn")?, Layout::Parallel(norm("ln_mlp")?)),
        (true, false) => (norm("input_layernorm")?, Layout::ParallelSharedNorm),
        (false, _) => (norm("input_layernorm")?, Layout::Sequential(norm("post_attention_layernorm")?)),
    };
    let rows = heads.rows().iter().sum();
    let qkv = Linear::reordered(&a.sub("query_key_value"), n, rows, &heads.grouped_row(), c.bias)?;
    let output = Linear::load(&a.sub("dense"), heads.rows()[0], n, c.bias)?;
    let inner = c.ffn_hidden_size.unwrap_or(n.saturating_mul(4));
    let act = activation("activation", c.activation.as_deref().unwrap_or("gelu"))?;
    // Falcon adds ALiBi to the scores before it scales them.
    let slopes = || alibi_slopes(heads.count).map(|slope| slope * heads.scale()).collect();
    Ok(Block {
        attention_norm,
        attention: GroupedQueryAttention {
            rotary: rotary.clone(),
            bias: if c.alibi { Bias::Alibi(slopes()) } else { Bias::None },
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        layout,
        mlp: Mlp::Plain {
            up: Linear::load(&m.sub("dense_h_to_4h"), n, inner, c.bias)?.with(act),
            down: Linear::load(&m.sub("dense_4h_to_h"), inner, n, c.bias)?,
        },
    })
}
