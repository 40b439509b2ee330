//! Qwen 1 (Bai et al. 2023, arXiv:2309.16609): Llama's block with a bias in the QKV projection
//! alone, under GPT-2's names. Its successors are Llama's relatives (`llama.rs`).

use crate::block::Norm;
use crate::config::{context, default_true, default_usize, head_size, parse, refuse, ten_to_minus};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::rope::{Rope, rotary_dims};
use crate::{Backbone, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Activation, Linear, Rotary, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    /// Twice the width of the MLP: gate and up projection together.
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(default = "default_usize::<128>")]
    kv_channels: usize,
    #[serde(default = "default_usize::<8192>")]
    max_position_embeddings: usize,
    /// The longest sequence of the training.
    seq_length: Option<usize>,
    #[serde(default = "default_true")]
    use_dynamic_ntk: bool,
    #[serde(default = "default_true")]
    use_logn_attn: bool,
    #[serde(default = "ten_to_minus::<6>")]
    layer_norm_epsilon: f32,
    rotary_pct: Option<f64>,
    rotary_emb_base: Option<f64>,
    /// Whether the projections other than QKV lack biases.
    #[serde(default = "default_true")]
    no_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    /// The vision encoder of Qwen-VL.
    visual: Option<Value>,
}

impl Config {
    fn heads(&self) -> Result<Heads> {
        let (count, size) = (self.num_attention_heads, head_size(self.hidden_size, self.num_attention_heads)?);
        refuse(self.kv_channels != size, || {
            format!(
                "kv_channels {} is not hidden_size {} over {count} heads, which is not supported",
                self.kv_channels, self.hidden_size
            )
        })?;
        Heads::checked(count, count, size)
    }

    /// The longest sequence. Beyond `seq_length` the published code changes the RoPE frequencies
    /// with the length of the sequence (`use_dynamic_ntk`), which no KV cache can follow, and
    /// scales queries by the logarithm of their position (`use_logn_attn`). Up to there both change
    /// nothing, so the context ends there.
    fn longest(&self) -> Result<usize> {
        if !self.use_dynamic_ntk && !self.use_logn_attn {
            return Ok(self.max_position_embeddings);
        }
        refuse(self.seq_length.is_none(), || "use_dynamic_ntk and use_logn_attn need seq_length".into())?;
        Ok(self.seq_length.map_or(self.max_position_embeddings, |n| n.min(self.max_position_embeddings)))
    }

    fn norm(&self, w: &Weights) -> Result<Norm> {
        Norm::rms(w, self.hidden_size, self.layer_norm_epsilon)
    }
}

const TOKEN_EMBEDDINGS: &str = "wte.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    refuse(c.visual.is_some(), || "Qwen-VL (`visual`) is not supported; Qwen is, for texts".into())?;
    let (heads, n) = (c.heads()?, c.hidden_size);
    let w = root(w, "transformer", TOKEN_EMBEDDINGS)?;
    let trained = c.longest()?;
    let positions = context(config, trained);
    let dims = rotary_dims(heads.size, c.rotary_pct.unwrap_or(1.0))?;
    let theta = c.rotary_emb_base.unwrap_or(10_000.0);
    let rotary = Rope { theta, dims, positions, trained, original: None, scaling: None }.rotary(&w)?;
    let load = |i| block(&w.sub("h").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("wte"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: c.norm(&w.sub("ln_f"))?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection: None,
        causal: true,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "Qwen"))
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let embed_tokens = root(w, "transformer", TOKEN_EMBEDDINGS)?.sub("wte");
    head::lm_head(w, &embed_tokens, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
    let (a, m, n) = (w.sub("attn"), w.sub("mlp"), c.hidden_size);
    let (inner, bias) = (c.intermediate_size / 2, !c.no_bias);
    let qkv = Linear::load(&a.sub("c_attn"), n, heads.rows().iter().sum(), true)?;
    let output = Linear::load(&a.sub("c_proj"), n, n, bias)?;
    // w2 is the gate.
    let gate_up = Linear::stacked(&[m.sub("w2"), m.sub("w1")], n, inner, bias)?;
    Ok(Block {
        attention_norm: c.norm(&w.sub("ln_1"))?,
        attention: GroupedQueryAttention {
            rotary: Some(rotary.clone()),
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        layout: Layout::Sequential(c.norm(&w.sub("ln_2"))?),
        mlp: Mlp::gated(gate_up, Activation::Silu, Linear::load(&m.sub("c_proj"), inner, n, bias)?),
    })
}
