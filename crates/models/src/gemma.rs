//! Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and the text model of Gemma 3
//! (arXiv:2503.19786): RMS norms with weight 1 + w, scaled token embeddings, few key-value heads.
//! Gemma 2 has norms before and after attention and MLP, sliding windows on some layers and
//! soft-capped scores; Gemma 3 has QK-norm instead of soft-capping and two RoPE bases.
//! EmbeddingGemma (arXiv:2509.20354) is Gemma 3 with attention in both directions.

use crate::block::{Layer, Norm};
use crate::config::{activation, check_layer_types, context, default_usize, parse, refuse, ten_to_minus};
use crate::decoder::{Decoder, GroupedQueryAttention, Heads, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::rope::{Rope, Scaling};
use crate::{Backbone, Batch, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Linear, Mask, Pooling, RmsNorm, Rotary, Tensor, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    model_type: String,
    #[serde(default = "default_usize::<262_208>")]
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    #[serde(default = "default_usize::<8>")]
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    #[serde(default = "default_usize::<256>")]
    head_dim: usize,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    max_position_embeddings: Option<usize>,
    #[serde(default = "ten_to_minus::<6>")]
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<RopeParameters>,
    #[serde(default)]
    attention_bias: bool,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    sliding_window: Option<usize>,
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    is_causal: Option<bool>,
    use_bidirectional_attention: Option<bool>,
}

/// `rope_parameters`, for all layers or by layer type.
#[derive(Deserialize)]
#[serde(untagged)]
enum RopeParameters {
    Each { full_attention: Box<Scaling>, sliding_attention: Box<Scaling> },
    All(Box<Scaling>),
}

impl Config {
    fn generation(&self) -> u8 {
        match &*self.model_type {
            "gemma" => 1,
            "gemma2" => 2,
            _ => 3,
        }
    }

    fn heads(&self) -> Result<Heads> {
        let default = if self.generation() == 1 { self.num_attention_heads } else { 4 };
        Heads::checked(self.num_attention_heads, self.num_key_value_heads.unwrap_or(default), self.head_dim)
    }

    fn positions(&self) -> usize {
        self.max_position_embeddings.unwrap_or(if self.generation() == 3 { 131_072 } else { 8192 })
    }

    /// The sliding window of a layer, if it has one.
    fn window(&self, layer: usize) -> Option<usize> {
        let windowed = match (&self.layer_types, self.generation()) {
            (_, 1) => false,
            (Some(types), _) => types.get(layer).is_some_and(|kind| kind == "sliding_attention"),
            (None, 2) => layer.is_multiple_of(2),
            (None, _) => !(layer + 1).is_multiple_of(self.sliding_window_pattern.unwrap_or(6).max(1)),
        };
        windowed.then(|| self.sliding_window.unwrap_or(4096))
    }

    /// Whether attention is causal. EmbeddingGemma's is not.
    fn causal(&self) -> Result<bool> {
        let both = self.generation() == 3 && self.use_bidirectional_attention == Some(true);
        refuse(both && self.is_causal == Some(false), || {
            "is_causal and use_bidirectional_attention together are not supported: their sliding windows differ".into()
        })?;
        Ok(!both)
    }

    fn mask(&self, layer: usize) -> Result<Mask> {
        Ok(match (self.window(layer), self.causal()?) {
            (None, true) => Mask::Causal,
            (None, false) => Mask::All,
            (Some(window), true) => Mask::CausalWindow(window),
            // Half of the window is before a token, half after it.
            (Some(window), false) => Mask::Window(window / 2),
        })
    }

    /// RoPE tables of full-attention layers and of sliding-window layers.
    fn rotary(&self, w: &Weights, positions: usize) -> Result<[Rotary; 2]> {
        let local = self.rope_local_base_freq.unwrap_or(10_000.0);
        let default = self.rope_theta.unwrap_or(if self.generation() == 3 { 1e6 } else { 10_000.0 });
        let third = self.generation() == 3;
        let (full, sliding) = match &self.rope_parameters {
            Some(RopeParameters::Each { full_attention, sliding_attention }) => {
                (Some(&**full_attention), Some(&**sliding_attention))
            }
            Some(RopeParameters::All(all)) => (Some(&**all), if third { None } else { Some(&**all) }),
            None => (self.rope_scaling.as_ref(), if third { None } else { self.rope_scaling.as_ref() }),
        };
        let of = |scaling: Option<&Scaling>, default: f64| {
            let theta = scaling.and_then(|s| s.rope_theta).unwrap_or(default);
            let trained = self.positions();
            Rope { theta, dims: self.head_dim, positions, trained, original: None, scaling }.rotary(w)
        };
        Ok([of(full, default)?, of(sliding, if third { local } else { default })?])
    }
}

/// The text model's part of a multimodal configuration.
fn text_config(config: &Value) -> Value {
    let Some(Value::Object(text)) = config.get("text_config") else { return config.clone() };
    let mut text = text.clone();
    if let Some(context) = config.get(crate::CONTEXT) {
        text.insert(crate::CONTEXT.into(), context.clone());
    }
    Value::Object(text)
}

/// The root of the text model's tensors.
fn text_root(w: &Weights) -> Result<Weights> {
    for prefix in ["model.language_model", "language_model.model", "model"] {
        if w.sub(prefix).has(EMBED_TOKENS)? {
            return Ok(w.sub(prefix));
        }
    }
    root(w, "model", EMBED_TOKENS)
}

const EMBED_TOKENS: &str = "embed_tokens.weight";

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let config = &text_config(config);
    let c: Config = parse(config)?;
    if let Some(types) = &c.layer_types {
        check_layer_types(types, c.num_hidden_layers)?;
    }
    let (heads, n) = (c.heads()?, c.hidden_size);
    let w = text_root(w)?;
    let positions = context(config, c.positions());
    let rotary = c.rotary(&w, positions)?;
    let load = |i| Block::load(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("embed_tokens"), c.vocab_size, n)?,
        scale: (n as f32).sqrt(),
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::Rms(RmsNorm::load(&w.sub("norm"), n, c.rms_norm_eps)?.from_one()),
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection: None,
        causal: c.causal()?,
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(&text_config(config))?.hidden_size, "Gemma"))
}

/// The head of a reranker: logits of the answers `tokens`. The LM head is the embedding table.
pub(crate) fn answer_head(config: &Value, w: &Weights, tokens: &[u32]) -> Result<Head> {
    let c: Config = parse(config)?;
    let rows: Vec<_> = tokens.iter().map(|token| *token as usize).collect();
    let out = Linear::select_rows(&text_root(w)?.sub("embed_tokens"), c.hidden_size, c.vocab_size, &rows)?;
    Ok(Head { pooling: Pooling::LastToken, ..Head::new(None, None, out) })
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(&text_config(config))?;
    let head = head::lm_head(w, &text_root(w)?.sub("embed_tokens"), [c.vocab_size, c.hidden_size], true)?;
    Ok(LmHead { cap: c.final_logit_softcapping, ..head })
}

/// h = x + norm(Attn(norm(x))); y = h + norm(Mlp(norm(h))). Gemma 1 has no norms after attention
/// and MLP.
struct Block {
    attention_norm: RmsNorm,
    attention: GroupedQueryAttention,
    norm: RmsNorm,
    mlp: Mlp,
    /// The norms after attention and after the MLP.
    post_norms: Option<[RmsNorm; 2]>,
}

impl Block {
    fn load(w: &Weights, c: &Config, heads: Heads, rotary: &[Rotary; 2], layer: usize) -> Result<Block> {
        let (a, m, n) = (w.sub("self_attn"), w.sub("mlp"), c.hidden_size);
        let of = |w: &Weights, name, size| RmsNorm::load(&w.sub(name), size, c.rms_norm_eps).map(RmsNorm::from_one);
        let norm = |name| of(w, name, n);
        let qkv = heads.projections(&a, n, c.attention_bias)?;
        let output = Linear::load(&a.sub("o_proj"), heads.rows()[0], n, c.attention_bias)?;
        let generation = c.generation();
        let norms = match generation {
            3 => Some([Norm::Rms(of(&a, "q_norm", heads.size)?), Norm::Rms(of(&a, "k_norm", heads.size)?)]),
            _ => None,
        };
        let scalar = c.query_pre_attn_scalar.unwrap_or(if generation == 1 { heads.size as f64 } else { 256.0 });
        let cap = if generation == 2 { c.attn_logit_softcapping } else { None };
        // Gemma 1's files say "gelu" and mean the tanh approximation.
        let act = match (&c.hidden_activation, &c.hidden_act) {
            (Some(name), _) => name,
            (None, Some(name)) if generation > 1 => name,
            _ => "gelu_pytorch_tanh",
        };
        let gate_up = Linear::stacked(&[m.sub("gate_proj"), m.sub("up_proj")], n, c.intermediate_size, false)?;
        let down = Linear::load(&m.sub("down_proj"), c.intermediate_size, n, false)?;
        let (before, post_norms) = match generation {
            1 => ("post_attention_layernorm", None),
            _ => {
                let post_norms = [norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?];
                ("pre_feedforward_layernorm", Some(post_norms))
            }
        };
        Ok(Block {
            attention_norm: norm("input_layernorm")?,
            attention: GroupedQueryAttention {
                norms,
                rotary: Some(rotary[usize::from(c.window(layer).is_some())].clone()),
                scale: (1.0 / scalar.sqrt()) as f32,
                cap,
                mask: c.mask(layer)?,
                ..GroupedQueryAttention::new(qkv, output, heads, layer)
            },
            norm: norm(before)?,
            mlp: Mlp::gated(gate_up, activation("hidden_activation", act)?, down),
            post_norms,
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let normed = self.attention_norm.forward(x)?;
        let Some([after_attention, after_mlp]) = &self.post_norms else {
            let h = self.attention.forward_residual(&normed, b, x)?;
            return self.mlp.forward_residual(&self.norm.forward(&h)?, &h);
        };
        let h = after_attention.forward_added(&self.attention.forward(&normed, b)?, x)?;
        Ok(after_mlp.forward_added(&self.mlp.forward(&self.norm.forward(&h)?)?, &h)?)
    }
}
