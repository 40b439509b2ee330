//! StableLM (Bellagente et al. 2024, arXiv:2402.17834): Llama's block with layer norms and rotary positions on a part of each head;
//! the 12B has a norm for each head and its attention and MLP side by side.

use crate::block::Layer;
use crate::config::{activation, context, head_size, parse};
use crate::decoder::{Decoder, Heads, Mlp, Norm, SharedAttention, words};
use crate::head::{self, last_token, root};
use crate::rope::{Rope, Scaling, turned};
use crate::{Batch, Encoder, Head, Limits, LmHead, Positions, Result, Task};
use sconce_ops::{LayerNorm, Linear, Rotary, Tensor, Weights};
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
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default = "positions")]
    max_position_embeddings: usize,
    #[serde(default = "eps")]
    layer_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    qk_layernorm: bool,
    #[serde(default)]
    use_parallel_residual: bool,
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
    let heads = Heads::checked(count, c.num_key_value_heads.unwrap_or(count), head_size(n, count)?)?;
    let w = root(w, "model", WORDS)?;
    let positions = context(config, c.max_position_embeddings);
    let scaling = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
    let part = scaling.and_then(|s| s.partial_rotary_factor).or(c.partial_rotary_factor).unwrap_or(0.25);
    let rotary = Rope {
        theta: scaling.and_then(|s| s.rope_theta).or(c.rope_theta).unwrap_or(10_000.0),
        dims: turned(heads.size, part)?,
        positions,
        trained: c.max_position_embeddings,
        original: None,
        scaling,
    };
    let rotary = rotary.rotary(&w)?;
    let load = |i| Block::load(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        words: words(&w.sub("embed_tokens"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::Layer(LayerNorm::load(&w.sub("norm"), n, c.layer_norm_eps, true)?),
        heads,
        limits: Limits { vocabulary: c.vocab_size, positions, types: None, counting: Positions::FromZero },
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "StableLM"))
}

pub(crate) fn next(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let words = root(w, "model", WORDS)?.sub("embed_tokens");
    head::next(w, &words, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

/// h = x + Attn(norm(x)); y = h + Mlp(norm(h)), or with one norm for both: y = x + Attn(norm(x)) + Mlp(norm(x)).
struct Block {
    attention_norm: LayerNorm,
    attention: SharedAttention,
    norm: Option<LayerNorm>,
    mlp: Mlp,
}

impl Block {
    fn load(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
        let (a, m, n) = (w.sub("self_attn"), w.sub("mlp"), c.hidden_size);
        let norm = |name| LayerNorm::load(&w.sub(name), n, c.layer_norm_eps, true);
        let parts = ["q_proj", "k_proj", "v_proj"].map(|name| a.sub(name));
        let qkv = Linear::joined(&parts.into_iter().zip(heads.rows()).collect::<Vec<_>>(), n, c.use_qkv_bias)?;
        let output = Linear::load(&a.sub("o_proj"), heads.rows()[0], n, false)?;
        let of_heads = |name: &str, count: usize| -> Result<Norm> {
            let each: Vec<Weights> = (0..count).map(|i| a.sub(name).sub("norms").sub(i)).collect();
            Ok(Norm::Layer(LayerNorm::of_heads(&each, heads.size, c.layer_norm_eps)?))
        };
        let norms = match c.qk_layernorm {
            true => Some([of_heads("q_layernorm", heads.count)?, of_heads("k_layernorm", heads.shared)?]),
            false => None,
        };
        let gate_up = Linear::stacked(&[m.sub("gate_proj"), m.sub("up_proj")], n, c.intermediate_size, false)?;
        let down = Linear::load(&m.sub("down_proj"), c.intermediate_size, n, false)?;
        Ok(Block {
            attention_norm: norm("input_layernorm")?,
            attention: SharedAttention {
                norms,
                rotary: Some(rotary.clone()),
                ..SharedAttention::new(qkv, output, heads, layer)
            },
            norm: if c.use_parallel_residual { None } else { Some(norm("post_attention_layernorm")?) },
            mlp: Mlp::gated(gate_up, activation(&c.hidden_act)?, down),
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let normed = self.attention_norm.forward(x)?;
        let h = self.attention.forward_residual(&normed, b, x)?;
        match &self.norm {
            Some(norm) => self.mlp.forward_residual(&norm.forward(&h)?, &h),
            None => self.mlp.forward_residual(&normed, &h),
        }
    }
}
