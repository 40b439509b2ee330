//! JinaBERT v2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi instead of position embeddings and with gated MLPs. Its
//! heads are BERT's. The code model's variant, told by its tensors, also normalises queries and keys over their whole width and adds
//! a layer's input a second time.

use crate::bert::{Config, WORDS};
use crate::block::{Embeddings, Layer, Shape, Stack};
use crate::config::{parse, refuse};
use crate::head::root;
use crate::{Batch, Encoder, Error, Limits, Positions, Result};
use sconce_ops::{Activation, Attention, Bias, Gate, LayerNorm, Linear, Tensor, Weights, attention, glu};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

#[derive(Deserialize)]
struct Jina {
    #[serde(default)]
    position_embedding_type: String,
    #[serde(default)]
    feed_forward_type: String,
    #[serde(default)]
    is_decoder: bool,
}

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    let c: Config = parse(config)?;
    let jina: Jina = parse(config)?;
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
    let w = root(w, "bert", WORDS)?;
    let limits = Limits {
        vocabulary: c.vocab_size,
        positions: c.max_position_embeddings,
        types: Some(c.type_vocab_size),
        counting: Positions::FromZero,
    };
    let slopes: Arc<[f32]> = slopes(c.num_attention_heads).into();
    Ok(Box::new(Stack {
        embeddings: Embeddings::load(&w.sub("embeddings"), &limits, None, &shape)?,
        layers: (0..c.num_hidden_layers)
            .map(|i| Block::load(&w.sub("encoder.layer").sub(i), &shape, &slopes))
            .collect::<Result<_>>()?,
        project: None,
        hidden_size: c.hidden_size,
        limits,
    }))
}

/// Powers of 2^(−8 / heads). For a count that is no power of two: those of the power below, and between them every second one of the
/// power above.
fn slopes(heads: usize) -> Vec<f32> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let of = |count: usize| (1..=count).map(move |i| (-8.0 * i as f64 / count as f64).exp2() as f32);
    of(below).chain(of(2 * below).step_by(2)).take(heads).collect()
}

/// Post-norm block: h = norm(x + Attn(x)), in the code variant norm(x + h) behind it; y = norm(h + Mlp(h)).
struct Block {
    attention: SelfAttention,
    attention_norm: LayerNorm,
    second_norm: Option<LayerNorm>,
    up: Linear,
    activation: Activation,
    gate: Gate,
    down: Linear,
    norm: LayerNorm,
    slopes: Arc<[f32]>,
}

impl Block {
    fn load(w: &Weights, s: &Shape, slopes: &Arc<[f32]>) -> Result<Block> {
        let code = w.has("layer_norm_1.weight")?;
        let (n, m) = (s.hidden, w.sub("mlp"));
        let (up, down, norm) = if code {
            ("up_gated_layer", "down_layer", w.sub("layer_norm_2"))
        } else {
            ("gated_layers", "wo", m.sub("layernorm"))
        };
        let load = |w: &Weights| LayerNorm::load(w, n, s.eps, true);
        Ok(Block {
            attention: SelfAttention::load(&w.sub("attention"), s, code)?,
            attention_norm: load(&w.sub("attention.output.LayerNorm"))?,
            second_norm: code.then(|| load(&w.sub("layer_norm_1"))).transpose()?,
            up: Linear::load(&m.sub(up), n, s.inner.saturating_mul(2), false)?,
            activation: s.activation,
            gate: if code { Gate::Second } else { Gate::First },
            down: Linear::load(&m.sub(down), s.inner, n, true)?,
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
        let mlp = glu(&self.up.forward(&h)?, self.activation, self.gate)?;
        Ok(self.down.forward_normed(&mlp, &h, &self.norm)?)
    }
}

/// softmax(Q Kᵀ / √d + ALiBi) V, then a projection. Not one product, because the code variant normalises two of the three.
struct SelfAttention {
    qkv: [Linear; 3],
    norms: Option<[LayerNorm; 2]>,
    output: Linear,
    heads: usize,
    size: usize,
}

impl SelfAttention {
    fn load(w: &Weights, s: &Shape, code: bool) -> Result<SelfAttention> {
        let n = s.hidden;
        let part = |name| Linear::load(&w.sub("self").sub(name), n, n, true);
        let norm = |name| LayerNorm::load(&w.sub("self").sub(name), n, s.eps, true);
        Ok(SelfAttention {
            qkv: [part("query")?, part("key")?, part("value")?],
            norms: if code { Some([norm("layer_norm_q")?, norm("layer_norm_k")?]) } else { None },
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
        let how = Attention { bias: Bias::Alibi(slopes.clone()), ..b.attention(1.0 / (self.size as f32).sqrt()) };
        let y = attention(&heads(q)?, &heads(k)?, &heads(v)?, &how)?;
        Ok(self.output.forward_normed(&y.reshape(&[tokens, self.heads * self.size])?, x, norm)?)
    }
}

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_of_any_count_of_heads() {
        assert_eq!(slopes(1), [2f32.powi(-8)]);
        assert_eq!(slopes(4), [-2, -4, -6, -8].map(|e| 2f32.powi(e)));
        assert_eq!(slopes(6), [-2, -4, -6, -8, -1, -3].map(|e| 2f32.powi(e)));
    }
}
