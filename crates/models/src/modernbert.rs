//! ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norm blocks with gated MLPs and RoPE.
//! Every third layer has full attention, the others a sliding window; the two kinds have different
//! RoPE bases.

use crate::block::{Embeddings, Norm, PreNorm, SelfAttention, Stack};
use crate::config::{RopeConfig, activation, defaults, head_size, parse, refuse, table_rows};
use crate::head::{out, root, vocabulary};
use crate::mlp::Mlp;
use crate::{Backbone, Error, Head, Limits, Result, Task};
use sconce_ops::{LayerNorm, Linear, Mask, Pooling, Rotary, Table, Weights};
use serde::Deserialize;
use serde_json::Value;

defaults! {
    struct Config {
        vocab_size: usize = 50368,
        hidden_size: usize = 768,
        intermediate_size: usize = 1152,
        num_hidden_layers: usize = 22,
        num_attention_heads: usize = 12,
        hidden_activation: String = "gelu".into(),
        max_position_embeddings: usize = 8192,
        norm_eps: f32 = 1e-5,
        norm_bias: bool = false,
        attention_bias: bool = false,
        mlp_bias: bool = false,
        decoder_bias: bool = true,
        local_attention: usize = 128,
        classifier_pooling: String = "cls".into(),
        classifier_bias: bool = false,
        classifier_activation: String = "gelu".into(),
        /// The newer spelling of attention types and RoPE bases.
        layer_types: Option<Vec<String>> = None,
        rope_parameters: Option<Ropes> = None,
        /// The older spelling.
        global_attn_every_n_layers: usize = 3,
        global_rope_theta: Option<f64> = Some(160_000.0),
        local_rope_theta: Option<f64> = Some(10_000.0),
        rope_scaling: Option<RopeConfig> = None,
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ropes {
    full_attention: Option<RopeConfig>,
    sliding_attention: Option<RopeConfig>,
}

impl Config {
    /// RoPE bases of full-attention layers and of sliding-window layers.
    fn bases(&self) -> Result<[f64; 2]> {
        let Ropes { full_attention, sliding_attention } = self.rope_parameters.clone().unwrap_or_default();
        for rope in [&full_attention, &sliding_attention, &self.rope_scaling].into_iter().flatten() {
            rope.check_unscaled()?;
        }
        let given = |rope: Option<RopeConfig>| rope.and_then(|rope| rope.rope_theta);
        let global = given(full_attention).or(self.global_rope_theta).unwrap_or(160_000.0);
        // Without a base of its own, a sliding-window layer uses the one of full attention.
        Ok([global, given(sliding_attention).or(self.local_rope_theta).unwrap_or(global)])
    }

    /// Whether layer `i` has a sliding window.
    fn local(&self, i: usize) -> Result<bool> {
        let Some(types) = &self.layer_types else {
            let every = self.global_attn_every_n_layers;
            return Ok(
                i.checked_rem(every).ok_or_else(|| Error::Config("global_attn_every_n_layers is 0".into()))? != 0
            );
        };
        match types.get(i).map(String::as_str) {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            Some(other) => Err(Error::Config(format!("`{other}` in layer_types is not supported"))),
            None => Err(Error::Config(format!("{} layer_types for {} layers", types.len(), self.num_hidden_layers))),
        }
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let size = head_size(c.hidden_size, c.num_attention_heads)?;
    refuse(size % 2 != 0, || format!("RoPE needs heads of an even size, not {size}"))?;
    let w = root(w, "model", TOKEN_EMBEDDINGS)?;
    let norm = |w: &Weights| LayerNorm::load(w, c.hidden_size, c.norm_eps, c.norm_bias);
    let words = Table::load(&w.sub("embeddings.tok_embeddings"), "weight", [c.vocab_size, c.hidden_size])?;
    let positions = table_rows(c.max_position_embeddings, size)?;
    let [global, local] = c.bases()?.map(|base| Rotary::new(&w, &Rotary::frequencies(base, size), positions));
    let rotary = [global?, local?];
    let embedding_norm = norm(&w.sub("embeddings.norm"))?;
    let load = |i| block(&w.sub("layers").sub(i), &c, &rotary, i);
    Ok(Box::new(Stack {
        embeddings: Embeddings { words, positions: None, types: None, norm: embedding_norm },
        project: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Some(norm(&w.sub("final_norm"))?),
        hidden_size: c.hidden_size,
        limits: Limits::new(c.vocab_size, positions),
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let (h, hidden) = (w.sub("head"), c.hidden_size);
    let out = match task {
        Task::Classify | Task::Tag => out(&w.sub("classifier"), hidden, true)?,
        Task::Vocabulary => {
            let (decoder, words) =
                (w.sub("decoder"), root(w, "model", TOKEN_EMBEDDINGS)?.sub("embeddings.tok_embeddings"));
            let biases: &[_] = if c.decoder_bias { &[(&decoder, "bias")] } else { &[] };
            vocabulary(&decoder, &words, [c.vocab_size, hidden], biases)?
        }
    };
    let pooling = match c.classifier_pooling.as_str() {
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => return Err(Error::Config(format!("classifier_pooling `{other}` is not supported"))),
    };
    let dense = Linear::load(&h.sub("dense"), hidden, hidden, c.classifier_bias)?;
    let dense = dense.with(activation("classifier_activation", &c.classifier_activation)?);
    let norm = LayerNorm::load(&h.sub("norm"), hidden, c.norm_eps, c.norm_bias)?;
    Ok(Head { pooling, ..Head::new(Some(dense), Some(norm), out) })
}

const TOKEN_EMBEDDINGS: &str = "embeddings.tok_embeddings.weight";

/// `rotary` is for full-attention layers and for sliding-window layers.
fn block(w: &Weights, c: &Config, rotary: &[Rotary; 2], i: usize) -> Result<PreNorm> {
    let norm = |name| Norm::layer(&w.sub(name), c.hidden_size, c.norm_eps, c.norm_bias);
    let linear = |name, k, n, bias| Linear::load(&w.sub(name), k, n, bias);
    let (n, inner) = (c.hidden_size, c.intermediate_size);
    // The first layer's input is already normalized, by the norm of the embeddings.
    let attention_norm = (i > 0).then(|| norm("attn_norm")).transpose()?;
    let qkv = linear("attn.Wqkv", n, n.saturating_mul(3), c.attention_bias)?;
    let output = linear("attn.Wo", n, n, c.attention_bias)?;
    let (heads, local) = (c.num_attention_heads, c.local(i)?);
    Ok(PreNorm {
        attention_norm,
        attention: SelfAttention {
            mask: if local { Mask::Window(c.local_attention / 2) } else { Mask::All },
            rotary: Some(rotary[usize::from(local)].clone()),
            ..SelfAttention::new(qkv, output, heads, head_size(n, heads)?)
        },
        norm: norm("mlp_norm")?,
        mlp: Mlp::gated(
            linear("mlp.Wi", n, inner.saturating_mul(2), c.mlp_bias)?,
            activation("hidden_activation", &c.hidden_activation)?,
            linear("mlp.Wo", inner, n, c.mlp_bias)?,
        ),
    })
}
