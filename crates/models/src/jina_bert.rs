//! JinaBERT v2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi instead of position
//! embeddings and with gated MLPs. Its heads are BERT's. The code model's variant, recognized by
//! its tensors, also normalizes queries and keys over their whole width and adds a layer's input a
//! second time.

use crate::bert::{Config, WORD_EMBEDDINGS};
use crate::block::{Embeddings, Layer, Shape, Stack, alibi_slopes};
use crate::config::{parse, refuse};
use crate::head::root;
use crate::mlp::Mlp;
use crate::{Backbone, Batch, Error, Result};
use sconce_ops::{Activation, Attention, Bias, Gate, LayerNorm, Linear, Tensor, Weights, attention};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

#[derive(Default, Deserialize)]
#[serde(default)]
struct JinaConfig {
    position_embedding_type: String,
    feed_forward_type: String,
    is_decoder: bool,
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let jina: JinaConfig = parse(config)?;
    refuse(jina.position_embedding_type != "alibi", || {
        format!("position_embedding_type `{}` is not supported in JinaBERT; alibi is", jina.position_embedding_type)
    })?;
    refuse(jina.is_decoder, || "a decoder (is_decoder) is not supported; encoders are".into())?;
    let activation = match jina.feed_forward_type.as_str() {
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        other => {
            let what = format!("feed_forward_type `{other}` is not supported in JinaBERT; geglu and reglu are");
            return Err(Error::Config(what));
        }
    };
    let shape = Shape { activation, ..c.shape()? };
    let w = root(w, "bert", WORD_EMBEDDINGS)?;
    let limits = c.limits();
    let slopes: Arc<[f32]> = alibi_slopes(c.num_attention_heads).collect();
    let embeddings = Embeddings::load(&w.sub("embeddings"), &limits, None, &shape)?;
    let load = |i| Block::load(&w.sub("encoder.layer").sub(i), &shape, &slopes);
    let layers = (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?;
    Ok(Box::new(Stack::new(embeddings, layers, c.hidden_size, limits)))
}

/// Post-norm block: h = norm(x + Attn(x)), then in the code variant h = norm(x + h); y = norm(h +
/// Mlp(h)).
struct Block {
    attention: SelfAttention,
    attention_norm: LayerNorm,
    second_norm: Option<LayerNorm>,
    mlp: Mlp,
    norm: LayerNorm,
    slopes: Arc<[f32]>,
}

impl Block {
    fn load(w: &Weights, s: &Shape, slopes: &Arc<[f32]>) -> Result<Block> {
        let is_code = w.has("layer_norm_1.weight")?;
        let (n, m) = (s.hidden, w.sub("mlp"));
        let (up, down, norm) = if is_code {
            ("up_gated_layer", "down_layer", w.sub("layer_norm_2"))
        } else {
            ("gated_layers", "wo", m.sub("layernorm"))
        };
        let load = |w: &Weights| LayerNorm::load(w, n, s.eps, true);
        // Older GGUF files have the gate as a matrix of its own.
        let has_gate = m.has("gate.weight")?;
        Ok(Block {
            attention: SelfAttention::load(&w.sub("attention"), s, is_code)?,
            attention_norm: load(&w.sub("attention.output.LayerNorm"))?,
            second_norm: is_code.then(|| load(&w.sub("layer_norm_1"))).transpose()?,
            mlp: Mlp::Gated {
                gate_up: match has_gate {
                    true => Linear::stacked(&[m.sub("gate"), m.sub("up")], n, s.inner, false)?,
                    false => Linear::load(&m.sub(up), n, s.inner.saturating_mul(2), false)?,
                },
                activation: s.activation,
                gate: if is_code && !has_gate { Gate::Second } else { Gate::First },
                down: Linear::load(&m.sub(down), s.inner, n, true)?,
            },
            norm: load(&norm)?,
            slopes: slopes.clone(),
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let mut h = self.attention.forward_normed(x, b, &self.slopes, &self.attention_norm)?;
        if let Some(norm) = &self.second_norm {
            h = norm.forward_residual(&h, x)?;
        }
        self.mlp.forward_normed(&h, &self.norm)
    }
}

/// softmax(Q Kᵀ / √d + ALiBi) V, then the output projection. Q, K and V are separate products
/// because the code variant normalizes Q and K.
struct SelfAttention {
    qkv: [Linear; 3],
    norms: Option<[LayerNorm; 2]>,
    output: Linear,
    heads: usize,
    size: usize,
}

impl SelfAttention {
    fn load(w: &Weights, s: &Shape, is_code: bool) -> Result<SelfAttention> {
        let n = s.hidden;
        let part = |name| Linear::load(&w.sub("self").sub(name), n, n, true);
        let norm = |name| LayerNorm::load(&w.sub("self").sub(name), n, s.eps, true);
        Ok(SelfAttention {
            qkv: [part("query")?, part("key")?, part("value")?],
            norms: if is_code { Some([norm("layer_norm_q")?, norm("layer_norm_k")?]) } else { None },
            output: Linear::load(&w.sub("output.dense"), n, n, true)?,
            heads: s.heads,
            size: s.size,
        })
    }

    /// norm(x + Attn(x)).
    fn forward_normed(&self, x: &Tensor, b: &Batch, slopes: &Arc<[f32]>, norm: &LayerNorm) -> Result<Tensor> {
        let tokens = b.segments.tokens();
        let [query, key, value] = &self.qkv;
        let (mut q, mut k, v) = (query.forward(x)?, key.forward(x)?, value.forward(x)?);
        if let Some([query, key]) = &self.norms {
            (q, k) = (query.forward(&q)?, key.forward(&k)?);
        }
        let heads = |t: Tensor| t.reshape(&[tokens, self.heads, self.size]);
        let params = Attention { bias: Bias::Alibi(slopes.clone()), ..b.attention(1.0 / (self.size as f32).sqrt()) };
        let y = attention(&heads(q)?, &heads(k)?, &heads(v)?, &params)?;
        Ok(self.output.forward_normed(&y.reshape(&[tokens, self.heads * self.size])?, x, norm)?)
    }
}
