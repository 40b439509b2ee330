//! GPT-NeoX (Black et al. 2022, arXiv:2204.06745), Pythia (Biderman et al. 2023, arXiv:2304.01373)
//! and StableLM-alpha: layer norms, partial RoPE, biases everywhere, an MLP without a gate, and
//! attention and MLP in parallel, each with its own norm.

use crate::block::Norm;
use crate::config::{activation, context, defaults, head_size, parse};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{last_token, root, vocabulary};
use crate::mlp::Mlp;
use crate::rope::{Rope, Scaling, rotary_dims};
use crate::{Backbone, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Linear, Rotary, Weights};
use serde_json::Value;

defaults! {
    struct Config {
        vocab_size: usize = 50_432,
        hidden_size: usize = 6144,
        intermediate_size: usize = 24_576,
        num_hidden_layers: usize = 44,
        num_attention_heads: usize = 64,
        hidden_act: String = "gelu".into(),
        max_position_embeddings: usize = 2048,
        layer_norm_eps: f32 = 1e-5,
        // The fraction of a head that RoPE rotates, and the base of its frequencies.
        // `rope_parameters` has them as `partial_rotary_factor` and `rope_theta`.
        rotary_pct: f64 = 0.25,
        rotary_emb_base: f64 = 10_000.0,
        rope_scaling: Option<Scaling> = None,
        rope_parameters: Option<Scaling> = None,
        /// Whether the QKV and output projections have biases. All others always have them.
        attention_bias: bool = true,
        use_parallel_residual: bool = true,
        tie_word_embeddings: bool = false,
    }
}

impl Config {
    fn heads(&self) -> Result<Heads> {
        let count = self.num_attention_heads;
        Heads::checked(count, count, head_size(self.hidden_size, count)?)
    }

    fn norm(&self, w: &Weights) -> Result<Norm> {
        Norm::layer(w, self.hidden_size, self.layer_norm_eps, true)
    }

    fn rotary(&self, w: &Weights, size: usize, positions: usize) -> Result<Rotary> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let part = scaling.and_then(|s| s.partial_rotary_factor).unwrap_or(self.rotary_pct);
        let theta = scaling.and_then(|s| s.rope_theta).unwrap_or(self.rotary_emb_base);
        let trained = self.max_position_embeddings;
        Rope { theta, dims: rotary_dims(size, part)?, positions, trained, original: None, scaling }.rotary(w)
    }
}

const EMBED_IN: &str = "embed_in.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let heads = c.heads()?;
    let w = root(w, "gpt_neox", EMBED_IN)?;
    let positions = context(config, c.max_position_embeddings);
    let rotary = c.rotary(&w, heads.size, positions)?;
    let load = |i| block(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("embed_in"), c.vocab_size, c.hidden_size)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: c.norm(&w.sub("final_layer_norm"))?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection: None,
        causal: true,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "GPT-NeoX"))
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let embed_in = root(w, "gpt_neox", EMBED_IN)?.sub("embed_in");
    let embed_out = if c.tie_word_embeddings { embed_in.clone() } else { w.sub("embed_out") };
    let out = vocabulary(&embed_out, &embed_in, [c.vocab_size, c.hidden_size], &[])?;
    Ok(LmHead { out, scale: 1.0, cap: None })
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
    let (a, m, n) = (w.sub("attention"), w.sub("mlp"), c.hidden_size);
    // Buffers of the causal mask in files before 2023: the triangle and the value of masked scores.
    ["bias", "masked_bias"].iter().for_each(|name| a.skip(name));
    let rows = heads.rows().iter().sum();
    let qkv = Linear::reordered(&a.sub("query_key_value"), n, rows, &heads.grouped_row(), c.attention_bias)?;
    let output = Linear::load(&a.sub("dense"), n, n, c.attention_bias)?;
    let norm = c.norm(&w.sub("post_attention_layernorm"))?;
    let (inner, act) = (c.intermediate_size, activation("hidden_act", &c.hidden_act)?);
    Ok(Block {
        attention_norm: c.norm(&w.sub("input_layernorm"))?,
        attention: GroupedQueryAttention {
            rotary: Some(rotary.clone()),
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        layout: if c.use_parallel_residual { Layout::Parallel(norm) } else { Layout::Sequential(norm) },
        mlp: Mlp::Plain {
            up: Linear::load(&m.sub("dense_h_to_4h"), n, inner, true)?.with(act),
            down: Linear::load(&m.sub("dense_4h_to_h"), inner, n, true)?,
        },
    })
}
