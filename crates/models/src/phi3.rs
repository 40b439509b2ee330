//! Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): Llama's block with fused projections, and rotary positions in
//! two scalings, for short and for long texts.

use crate::block::Layer;
use crate::config::{activation, context, head_size, parse};
use crate::decoder::{Decoder, Heads, Mlp, Norm, SharedAttention, words};
use crate::head::{self, last_token, root};
use crate::rope::{Rope, Scaling, turned};
use crate::{Batch, Encoder, Head, Limits, LmHead, Positions, Result, Task};
use sconce_ops::{Linear, RmsNorm, Rotary, Tensor, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default = "positions")]
    max_position_embeddings: usize,
    original_max_position_embeddings: Option<f64>,
    #[serde(default = "eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    partial_rotary_factor: Option<f64>,
    sliding_window: Option<usize>,
    #[serde(default)]
    tie_word_embeddings: bool,
}

fn silu() -> String {
    "silu".into()
}
fn positions() -> usize {
    4096
}
fn eps() -> f32 {
    1e-5
}

const WORDS: &str = "embed_tokens.weight";

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    let c: Config = parse(config)?;
    let (count, n) = (c.num_attention_heads, c.hidden_size);
    let size = match c.head_dim {
        Some(size) => size,
        None => head_size(n, count)?,
    };
    let heads = Heads::checked(count, c.num_key_value_heads.unwrap_or(count), size)?;
    let w = root(w, "model", WORDS)?;
    let positions = context(config, c.max_position_embeddings);
    let scaling = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
    let part = scaling.and_then(|s| s.partial_rotary_factor).or(c.partial_rotary_factor).unwrap_or(1.0);
    let rotary = Rope {
        theta: scaling.and_then(|s| s.rope_theta).or(c.rope_theta).unwrap_or(10_000.0),
        dims: turned(size, part)?,
        positions,
        trained: c.max_position_embeddings,
        original: c.original_max_position_embeddings,
        scaling,
    };
    let rotary = rotary.rotary(&w)?;
    let load = |i| Block::load(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        words: words(&w.sub("embed_tokens"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::Rms(RmsNorm::load(&w.sub("norm"), n, c.rms_norm_eps)?),
        heads,
        limits: Limits { vocabulary: c.vocab_size, positions, types: None, counting: Positions::FromZero },
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "Phi-3"))
}

pub(crate) fn next(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let words = root(w, "model", WORDS)?.sub("embed_tokens");
    head::next(w, &words, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

/// Pre-norm block: h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
struct Block {
    attention_norm: RmsNorm,
    attention: SharedAttention,
    norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
        let (a, m, n) = (w.sub("self_attn"), w.sub("mlp"), c.hidden_size);
        let norm = |name| RmsNorm::load(&w.sub(name), n, c.rms_norm_eps);
        let qkv = Linear::load(&a.sub("qkv_proj"), n, heads.rows().iter().sum(), false)?;
        let output = Linear::load(&a.sub("o_proj"), heads.rows()[0], n, false)?;
        let gate_up = Linear::load(&m.sub("gate_up_proj"), n, c.intermediate_size.saturating_mul(2), false)?;
        let down = Linear::load(&m.sub("down_proj"), c.intermediate_size, n, false)?;
        Ok(Block {
            attention_norm: norm("input_layernorm")?,
            attention: SharedAttention {
                rotary: Some(rotary.clone()),
                window: c.sliding_window,
                ..SharedAttention::new(qkv, output, heads, layer)
            },
            norm: norm("post_attention_layernorm")?,
            mlp: Mlp::gated(gate_up, activation(&c.hidden_act)?, down),
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.attention.forward_residual(&self.attention_norm.forward(x)?, b, x)?;
        self.mlp.forward_residual(&self.norm.forward(&h)?, &h)
    }
}
