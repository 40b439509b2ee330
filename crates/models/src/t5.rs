//! The encoder of T5 (Raffel et al. 2019, arXiv:1910.10683), mT5 and UMT5: pre-norm blocks, biases by relative position instead of
//! position embeddings, and scores that are not scaled. Sentence-T5 and GTR. What a file holds of the decoder stays unread.

use crate::block::{Scores, SelfAttention};
use crate::config::{activation, parse, refuse};
use crate::head::{no_head, out, root};
use crate::{Batch, Encoder, Error, Head, Limits, Positions, Result, Task, Watch};
use sconce_ops::{Activation, Bias, Gate, Linear, Pooling, RmsNorm, Tensor, Weights, at, embed, glu};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: Option<usize>,
    #[serde(default = "d_model")]
    d_model: usize,
    #[serde(default = "d_kv")]
    d_kv: usize,
    d_ff: Option<usize>,
    num_layers: Option<usize>,
    num_heads: Option<usize>,
    #[serde(default = "buckets")]
    relative_attention_num_buckets: usize,
    #[serde(default = "far")]
    relative_attention_max_distance: usize,
    #[serde(default = "eps")]
    layer_norm_epsilon: f32,
    feed_forward_proj: Option<String>,
}

fn d_model() -> usize {
    512
}
fn d_kv() -> usize {
    64
}
fn buckets() -> usize {
    32
}
fn far() -> usize {
    128
}
fn eps() -> f32 {
    1e-6
}

/// T5's defaults differ from those of its multilingual kin.
struct Sizes {
    vocabulary: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    gated: bool,
    activation: Activation,
}

impl Config {
    fn sizes(&self) -> Result<Sizes> {
        let of = |given: Option<usize>, t5, multilingual| {
            given.unwrap_or(if self.model_type == "t5" { t5 } else { multilingual })
        };
        let usual = if self.model_type == "t5" { "relu" } else { "gated-gelu" };
        let how = self.feed_forward_proj.as_deref().unwrap_or(usual);
        let (gated, name) = how.strip_prefix("gated-").map_or((false, how), |name| (true, name));
        // Gated GELU has always meant the tanh form here.
        let name = if gated && name == "gelu" { "gelu_new" } else { name };
        let (heads, sizes) = (of(self.num_heads, 8, 6), (self.relative_attention_num_buckets, self.d_kv));
        refuse(heads.checked_mul(sizes.1).is_none_or(|n| n == 0), || {
            format!("{heads} heads of {} are not supported", sizes.1)
        })?;
        refuse(sizes.0 < 4 || self.relative_attention_max_distance <= sizes.0 / 4, || {
            format!("{} buckets to a distance of {} are no buckets", sizes.0, self.relative_attention_max_distance)
        })?;
        Ok(Sizes {
            vocabulary: of(self.vocab_size, 32128, 250112),
            inner: of(self.d_ff, 2048, 1024),
            layers: of(self.num_layers, 6, 8),
            heads,
            gated,
            activation: activation(name)?,
        })
    }
}

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(T5::load(config, w)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    match task {
        Task::Tag => {
            let out = out(&w.sub("classifier"), c.d_model, true)?;
            Ok(Head { pooling: Pooling::Cls, dense: None, norm: None, out })
        }
        // Its sequence classifier reads the decoder.
        Task::Classify | Task::Vocabulary => Err(no_head(task, "T5's encoder")),
    }
}

struct T5 {
    words: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    hidden_size: usize,
    limits: Limits,
}

impl T5 {
    fn load(config: &Value, w: &Weights) -> Result<T5> {
        let c: Config = parse(config)?;
        let s = c.sizes()?;
        let w = root(w, "transformer", "encoder.final_layer_norm.weight")?;
        let encoder = w.sub("encoder");
        let shared = if w.has("shared.weight")? { w.sub("shared") } else { encoder.sub("embed_tokens") };
        let words = shared.tensor("weight", &[s.vocabulary, c.d_model])?;
        // A state dict holds the one table under each of its names.
        encoder.skip("embed_tokens.weight");
        let mut layers: Vec<Layer> = Vec::new();
        for i in 0..s.layers {
            let block = encoder.sub("block").sub(i);
            // One table for all layers; in UMT5 every layer has its own.
            let scores = match layers.first() {
                Some(first) if c.model_type != "umt5" => first.scores.clone(),
                _ => {
                    let table = block.sub("layer.0.SelfAttention.relative_attention_bias");
                    let table = table.values("weight", &[c.relative_attention_num_buckets, s.heads])?;
                    let bias =
                        Bias::Buckets { table: table.into(), far: c.relative_attention_max_distance, both: true };
                    Scores { scale: 1.0, bias, ..Scores::default() }
                }
            };
            layers.push(Layer::load(&block, &c, &s, scores)?);
        }
        if layers.is_empty() {
            return Err(Error::Config("num_layers is 0".into()));
        }
        Ok(T5 {
            words,
            layers,
            norm: RmsNorm::load(&encoder.sub("final_layer_norm"), c.d_model, c.layer_norm_epsilon)?,
            hidden_size: c.d_model,
            // Distances beyond the last bucket share it, so that no sequence is too long.
            limits: Limits {
                vocabulary: s.vocabulary,
                positions: usize::MAX,
                types: None,
                counting: Positions::FromZero,
            },
        })
    }
}

impl Encoder for T5 {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let mut x = embed(&[(&self.words, &batch.ids)])?;
        for (i, layer) in self.layers.iter().enumerate() {
            watch(i, &x);
            let _at = at("layer", i);
            x = layer.forward(&x, batch)?;
        }
        let x = self.norm.forward(&x)?;
        watch(self.layers.len(), &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// Pre-norm block: h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
struct Layer {
    attention: SelfAttention,
    scores: Scores<'static>,
    attention_norm: RmsNorm,
    up: Linear,
    /// The activation where the MLP is gated; else it is a part of `up`.
    gate: Option<Activation>,
    down: Linear,
    norm: RmsNorm,
}

impl Layer {
    fn load(w: &Weights, c: &Config, s: &Sizes, scores: Scores<'static>) -> Result<Layer> {
        let (a, m) = (w.sub("layer.0.SelfAttention"), w.sub("layer.1.DenseReluDense"));
        let width = s.heads * c.d_kv;
        let norm = |i: usize| RmsNorm::load(&w.sub("layer").sub(i).sub("layer_norm"), c.d_model, c.layer_norm_epsilon);
        let up = if s.gated {
            Linear::stacked(&[m.sub("wi_0"), m.sub("wi_1")], c.d_model, s.inner, false)?
        } else {
            Linear::load(&m.sub("wi"), c.d_model, s.inner, false)?.with(s.activation)
        };
        Ok(Layer {
            attention: SelfAttention {
                qkv: Linear::stacked(&["q", "k", "v"].map(|name| a.sub(name)), c.d_model, width, false)?,
                output: Linear::load(&a.sub("o"), width, c.d_model, false)?,
                heads: s.heads,
                size: c.d_kv,
            },
            scores,
            attention_norm: norm(0)?,
            up,
            gate: s.gated.then_some(s.activation),
            down: Linear::load(&m.sub("wo"), s.inner, c.d_model, false)?,
            norm: norm(1)?,
        })
    }

    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.attention.forward_residual(&self.attention_norm.forward(x)?, b, &self.scores, x)?;
        let mut up = self.up.forward(&self.norm.forward(&h)?)?;
        if let Some(activation) = self.gate {
            up = glu(&up, activation, Gate::First)?;
        }
        Ok(self.down.forward_residual(&up, &h)?)
    }
}
