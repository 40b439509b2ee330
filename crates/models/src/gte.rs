//! GTE's second generation (Zhang et al. 2024, arXiv:2407.19669; the hub's `NewModel`): post-norm
//! blocks with RoPE, gated MLPs and a fused QKV projection. Also Snowflake's Arctic-embed m v2.

use crate::bert::WORD_EMBEDDINGS;
use crate::block::{Embeddings, PostNorm, SelfAttention, Shape, Stack};
use crate::config::{RopeConfig, activation, defaults, head_size, parse, refuse, table_rows};
use crate::head::{out, root, vocabulary};
use crate::mlp::Mlp;
use crate::{Backbone, Error, Head, Limits, Result, Task};
use sconce_ops::{Activation, Gate, LayerNorm, Linear, Rotary, Weights};
use serde_json::Value;

defaults! {
    struct Config {
        model_type: String = String::new(),
        vocab_size: Option<usize> = None,
        hidden_size: usize = 768,
        num_hidden_layers: usize = 12,
        num_attention_heads: usize = 12,
        intermediate_size: usize = 3072,
        max_position_embeddings: Option<usize> = None,
        type_vocab_size: usize = 1,
        layer_norm_eps: f32 = 1e-12,
        hidden_act: String = "gelu".into(),
        layer_norm_type: Option<String> = None,
        position_embedding_type: Option<String> = None,
        rope_theta: Option<f64> = None,
        rope_scaling: Option<RopeConfig> = None,
        rope_parameters: Option<RopeConfig> = None,
        logn_attention_scale: bool = false,
        pack_qkv: Option<bool> = None,
    }
}

impl Config {
    fn vocabulary(&self) -> usize {
        self.vocab_size.unwrap_or(if self.model_type == "gte" { 250_048 } else { 30_528 })
    }

    fn check(&self) -> Result<()> {
        let other = |given: &Option<String>, default| given.as_deref().is_some_and(|given| given != default);
        refuse(other(&self.layer_norm_type, "layer_norm"), || {
            format!(
                "layer_norm_type `{}` is not supported; layer_norm is",
                self.layer_norm_type.as_deref().unwrap_or("")
            )
        })?;
        refuse(other(&self.position_embedding_type, "rope"), || {
            let kind = self.position_embedding_type.as_deref().unwrap_or("");
            format!("position_embedding_type `{kind}` is not supported; rope is")
        })?;
        refuse(self.logn_attention_scale, || "logn_attention_scale is not supported".into())
    }

    /// RoPE frequencies, one for each pair of elements of a head.
    fn frequencies(&self, size: usize) -> Result<Vec<f32>> {
        let default = if self.model_type == "gte" { 160_000.0 } else { 10_000.0 };
        let rope = self.rope_parameters.clone().unwrap_or_default();
        let base = rope.rope_theta.or(self.rope_theta).unwrap_or(default);
        let scalings = [self.rope_scaling.as_ref(), self.rope_parameters.as_ref()];
        let Some(scaling) = scalings.into_iter().flatten().find(|s| s.scaling().is_some()) else {
            rope.check_unscaled()?;
            return Ok(Rotary::frequencies(base, size));
        };
        // Fixed NTK scaling: a larger base, and every frequency divided by factor^(2 / size) (the
        // hub's code; https://kexue.fm/archives/9706).
        match (scaling.scaling(), scaling.factor, scaling.mixed_b) {
            (Some("ntk"), Some(factor), None) if factor >= 1.0 => {
                let slower = factor.powf(2.0 / size as f64) as f32;
                Ok(Rotary::frequencies(base * factor, size).iter().map(|f| f / slower).collect())
            }
            _ => Err(Error::Config(
                "rope_scaling is supported as ntk with a factor of at least 1, without mixed_b".into(),
            )),
        }
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    c.check()?;
    let size = head_size(c.hidden_size, c.num_attention_heads)?;
    refuse(size % 2 != 0, || format!("RoPE needs heads of an even size, not {size}"))?;
    let shape = Shape {
        hidden: c.hidden_size,
        heads: c.num_attention_heads,
        size,
        inner: c.intermediate_size,
        activation: activation("hidden_act", &c.hidden_act)?,
        eps: c.layer_norm_eps,
    };
    let w = encoder_root(w)?;
    let default = if c.model_type == "gte" { 8192 } else { 2048 };
    let positions = table_rows(c.max_position_embeddings.unwrap_or(default), size)?;
    let types = Some(c.type_vocab_size).filter(|rows| *rows > 0);
    let limits = Limits { types, ..Limits::new(c.vocabulary(), positions) };
    let rotary = Rotary::new(&w, &c.frequencies(size)?, limits.positions)?;
    let embeddings = Embeddings::load(&w.sub("embeddings"), &limits, None, &shape)?;
    let load = |i| block(&w.sub("encoder.layer").sub(i), &shape, c.pack_qkv.unwrap_or(true), &rotary);
    let layers = (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?;
    Ok(Box::new(Stack::new(embeddings, layers, c.hidden_size, limits)))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let hidden = c.hidden_size;
    let gte = encoder_root(w)?;
    let dense = |w: &Weights, act| Ok::<_, Error>(Linear::load(&w.sub("dense"), hidden, hidden, true)?.with(act));
    let classifier = || out(&w.sub("classifier"), hidden, true);
    Ok(match task {
        Task::Classify => Head::new(Some(dense(&gte.sub("pooler"), Activation::Tanh)?), None, classifier()?),
        Task::Tag => Head::new(None, None, classifier()?),
        Task::Vocabulary => {
            let (lm, words) = (w.sub("lm_head"), gte.sub("embeddings.word_embeddings"));
            let decoder = lm.sub("decoder");
            let dense = dense(&lm, activation("hidden_act", &c.hidden_act)?)?;
            let norm = LayerNorm::load(&lm.sub("norm"), hidden, c.layer_norm_eps, true)?;
            let out = vocabulary(&decoder, &words, [c.vocabulary(), hidden], &[(&decoder, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}

/// The root of the encoder's tensors.
fn encoder_root(w: &Weights) -> Result<Weights> {
    root(&root(w, "new", WORD_EMBEDDINGS)?, "gte", WORD_EMBEDDINGS)
}

fn block(w: &Weights, s: &Shape, packed: bool, rotary: &Rotary) -> Result<PostNorm> {
    let (a, m, n) = (w.sub("attention"), w.sub("mlp"), s.hidden);
    let norm = |name| LayerNorm::load(&w.sub(name), n, s.eps, true);
    let qkv = if packed {
        Linear::load(&a.sub("qkv_proj"), n, n.saturating_mul(3), true)?
    } else {
        Linear::stacked(&["q_proj", "k_proj", "v_proj"].map(|name| a.sub(name)), n, n, true)?
    };
    let output = Linear::load(&a.sub("o_proj"), n, n, true)?;
    Ok(PostNorm {
        attention: SelfAttention { rotary: Some(rotary.clone()), ..SelfAttention::new(qkv, output, s.heads, s.size) },
        attention_norm: norm("attn_ln")?,
        mlp: Mlp::Gated {
            gate_up: Linear::load(&m.sub("up_gate_proj"), n, s.inner.saturating_mul(2), false)?,
            activation: s.activation,
            gate: Gate::Second,
            down: Linear::load(&m.sub("down_proj"), s.inner, n, true)?,
        },
        norm: norm("mlp_ln")?,
    })
}
