//! GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks with layer norms, a fused QKV
//! projection, and transposed weights (`Conv1D`, whose rows are inputs).

use crate::block::Norm;
use crate::config::{activation, context, defaults, head_size, parse, refuse};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::{Backbone, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Linear, Weights};
use serde_json::Value;

defaults! {
    struct Config {
        vocab_size: usize = 50_257,
        n_embd: usize = 768,
        n_layer: usize = 12,
        n_head: usize = 12,
        n_positions: usize = 1024,
        n_inner: Option<usize> = None,
        layer_norm_epsilon: f32 = 1e-5,
        activation_function: String = "gelu_new".into(),
        scale_attn_weights: bool = true,
        scale_attn_by_inverse_layer_idx: bool = false,
        add_cross_attention: bool = false,
        /// Whether weights are transposed (`Conv1D`). No config.json has this field; the GGUF
        /// reader sets it to false.
        conv1d: bool = true,
        tie_word_embeddings: bool = true,
    }
}

impl Config {
    fn linear(&self, w: &Weights, k: usize, n: usize) -> Result<Linear> {
        Ok(if self.conv1d { Linear::transposed(w, k, n, true)? } else { Linear::load(w, k, n, true)? })
    }
}

const TOKEN_EMBEDDINGS: &str = "wte.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    refuse(c.add_cross_attention, || "cross-attention is not supported here".into())?;
    let n = c.n_embd;
    let heads = Heads::checked(c.n_head, c.n_head, head_size(n, c.n_head)?)?;
    let w = root(w, "transformer", TOKEN_EMBEDDINGS)?;
    let load = |i| block(&w.sub("h").sub(i), &c, heads, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("wte"), c.vocab_size, n)?,
        scale: 1.0,
        positions: Some(w.sub("wpe").tensor("weight", &[c.n_positions, n])?),
        layers: (0..c.n_layer).map(load).collect::<Result<_>>()?,
        norm: Norm::layer(&w.sub("ln_f"), n, c.layer_norm_epsilon, true)?,
        heads,
        limits: Limits::new(c.vocab_size, context(config, c.n_positions)),
        projection: None,
        causal: true,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.n_embd, "GPT-2"))
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let embed_tokens = root(w, "transformer", TOKEN_EMBEDDINGS)?.sub("wte");
    head::lm_head(w, &embed_tokens, [c.vocab_size, c.n_embd], c.tie_word_embeddings)
}

fn block(w: &Weights, c: &Config, heads: Heads, layer: usize) -> Result<Block> {
    let (a, m, n) = (w.sub("attn"), w.sub("mlp"), c.n_embd);
    // Buffers of the causal mask: the triangle and the value of masked scores.
    ["bias", "masked_bias"].iter().for_each(|name| a.skip(name));
    let norm = |name| Norm::layer(&w.sub(name), n, c.layer_norm_epsilon, true);
    let inner = c.n_inner.unwrap_or(n.saturating_mul(4));
    let default = if c.scale_attn_weights { heads.scale() } else { 1.0 };
    let scale = if c.scale_attn_by_inverse_layer_idx { default / (layer + 1) as f32 } else { default };
    let (qkv, output) = (c.linear(&a.sub("c_attn"), n, 3 * n)?, c.linear(&a.sub("c_proj"), n, n)?);
    Ok(Block {
        attention_norm: norm("ln_1")?,
        attention: GroupedQueryAttention { scale, ..GroupedQueryAttention::new(qkv, output, heads, layer) },
        layout: Layout::Sequential(norm("ln_2")?),
        mlp: Mlp::Plain {
            up: c.linear(&m.sub("c_fc"), n, inner)?.with(activation("activation_function", &c.activation_function)?),
            down: c.linear(&m.sub("c_proj"), inner, n)?,
        },
    })
}
