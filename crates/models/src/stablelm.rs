//! StableLM (Bellagente et al. 2024, arXiv:2402.17834): Llama's block with layer norms and partial
//! RoPE. The 12B has QK-norm with a norm per head, and parallel attention and MLP. Also Phi-1,
//! Phi-1.5 and Phi-2 (Li et al. 2023, arXiv:2309.05463): always parallel, an MLP without a gate,
//! biases everywhere.

use crate::block::Norm;
use crate::config::{activation, context, head_size, parse, ten_to_minus};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::rope::{Rope, Scaling, rotary_dims};
use crate::{Backbone, Error, Head, Limits, LmHead, Result, Task};
use sconce_ops::{LayerNorm, Linear, Rotary, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    #[serde(default = "ten_to_minus::<5>")]
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

impl Config {
    fn is_phi(&self) -> bool {
        self.model_type == "phi"
    }

    fn norm(&self, w: &Weights, size: usize) -> Result<Norm> {
        Norm::layer(w, size, self.layer_norm_eps, true)
    }
}

const EMBED_TOKENS: &str = "embed_tokens.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let (count, n) = (c.num_attention_heads, c.hidden_size);
    let heads = Heads::checked(count, c.num_key_value_heads.unwrap_or(count), head_size(n, count)?)?;
    let w = root(w, "model", EMBED_TOKENS)?;
    let (default, default_part, norm) = if c.is_phi() { (2048, 0.5, "final_layernorm") } else { (4096, 0.25, "norm") };
    let trained = c.max_position_embeddings.unwrap_or(default);
    let positions = context(config, trained);
    let scaling = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
    let part = scaling.and_then(|s| s.partial_rotary_factor).or(c.partial_rotary_factor).unwrap_or(default_part);
    let theta = scaling.and_then(|s| s.rope_theta).or(c.rope_theta).unwrap_or(10_000.0);
    let rotary = Rope { theta, dims: rotary_dims(heads.size, part)?, positions, trained, original: None, scaling };
    let rotary = rotary.rotary(&w)?;
    let load = |i| block(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("embed_tokens"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: c.norm(&w.sub(norm), n)?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection: None,
        causal: true,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    last_token(task, config, w, (c.hidden_size, if c.is_phi() { "Phi" } else { "StableLM" }))
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let embed_tokens = root(w, "model", EMBED_TOKENS)?.sub("embed_tokens");
    head::lm_head(w, &embed_tokens, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
    let (a, n, phi) = (w.sub("self_attn"), c.hidden_size, c.is_phi());
    let qkv = heads.projections(&a, n, phi || c.use_qkv_bias)?;
    let output = Linear::load(&a.sub(if phi { "dense" } else { "o_proj" }), heads.rows()[0], n, phi)?;
    // Phi has one norm for all heads, StableLM one for each.
    let head_norms = |name: &str, count: usize| {
        if phi {
            return c.norm(&a.sub(name), heads.size);
        }
        let each: Vec<Weights> = (0..count).map(|i| a.sub(name).sub("norms").sub(i)).collect();
        Ok::<_, Error>(Norm::Layer(LayerNorm::of_heads(&each, heads.size, c.layer_norm_eps)?))
    };
    let norms = match c.qk_layernorm {
        true => Some([head_norms("q_layernorm", heads.count)?, head_norms("k_layernorm", heads.kv_heads)?]),
        false => None,
    };
    Ok(Block {
        attention_norm: c.norm(&w.sub("input_layernorm"), n)?,
        attention: GroupedQueryAttention {
            norms,
            rotary: Some(rotary.clone()),
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        layout: match phi || c.use_parallel_residual {
            true => Layout::ParallelSharedNorm,
            false => Layout::Sequential(c.norm(&w.sub("post_attention_layernorm"), n)?),
        },
        mlp: mlp(&w.sub("mlp"), c)?,
    })
}

fn mlp(w: &Weights, c: &Config) -> Result<Mlp> {
    let (n, inner, act) = (c.hidden_size, c.intermediate_size, c.hidden_act.as_deref());
    if c.is_phi() {
        let up =
            Linear::load(&w.sub("fc1"), n, inner, true)?.with(activation("hidden_act", act.unwrap_or("gelu_new"))?);
        return Ok(Mlp::Plain { up, down: Linear::load(&w.sub("fc2"), inner, n, true)? });
    }
    let gate_up = Linear::stacked(&[w.sub("gate_proj"), w.sub("up_proj")], n, inner, false)?;
    let down = Linear::load(&w.sub("down_proj"), inner, n, false)?;
    Ok(Mlp::gated(gate_up, activation("hidden_act", act.unwrap_or("silu"))?, down))
}
