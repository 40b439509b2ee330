//! T5 as an encoder-decoder (Raffel et al. 2019, arXiv:1910.10683): its encoder, and a decoder with
//! cross-attention. Also mT5, UMT5, Flan-T5.
//!
//! A decoder block is causal self-attention, cross-attention over the encoder's hidden states, and
//! the MLP, each pre-norm. Cross-attention has no position bias, and its keys and values do not
//! change during decoding: they are computed once per input and written to a KV cache, and all
//! output sequences of that input share them.

use crate::block::{run_layers, skip_last};
use crate::config::{parse, refuse};
use crate::decoder::{GroupedQueryAttention, Heads};
use crate::mlp::Mlp;
use crate::t5::{Config, Sizes, T5, model_root};
use crate::{Backbone, Batch, EncoderKv, LayerHook, Limits, LmHead, Result, Seq2Seq};
use sconce_ops::{Attention, Bias, Keys, KvCache, KvCacheShape, Linear, Mask, RmsNorm, Tensor, Weights, attention};
use serde_json::Value;

struct T5Model {
    encoder: T5,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: LmHead,
    heads: Heads,
}

pub(crate) fn seq2seq(config: &Value, w: &Weights) -> Result<Box<dyn Seq2Seq>> {
    let c: Config = parse(config)?;
    let s = c.sizes()?;
    let encoder = T5::load(config, w)?;
    let (w, lm_head) = (model_root(w)?, w.sub("lm_head"));
    let decoder = w.sub("decoder");
    decoder.skip("embed_tokens.weight");
    refuse(s.decoder_layers == 0, || "num_decoder_layers is 0: this model is an encoder only".into())?;
    let heads = Heads::checked(s.heads, s.heads, c.d_kv)?;
    let load = |i| Layer::load(&decoder.sub("block"), &c, &s, heads, i);
    let layers = (0..s.decoder_layers).map(load).collect::<Result<Vec<_>>>()?;
    // The first T5 ties the LM head to the token embeddings, whose rows are not small, and scales
    // the logits by 1 / √d_model to compensate. Later versions have a separate LM head. A file of
    // the first version may have the table under both names, and newer files set
    // `tie_word_embeddings` for every T5.
    let tied = c.scale_decoder_outputs.or(c.tie_word_embeddings).unwrap_or(c.model_type == "t5");
    let has_lm_head = lm_head.has("weight")?;
    let scaled = if c.model_type == "t5" { tied } else { tied && !has_lm_head };
    let out = if scaled || !has_lm_head {
        lm_head.skip("weight");
        encoder.embed_tokens.clone()
    } else {
        Linear::load(&lm_head, c.d_model, s.vocabulary, false)?
    };
    let scale = if scaled { 1.0 / (c.d_model as f32).sqrt() } else { 1.0 };
    let norm = c.norm(&decoder.sub("final_layer_norm"))?;
    Ok(Box::new(T5Model { encoder, layers, norm, head: LmHead { out, scale, cap: None }, heads }))
}

impl Seq2Seq for T5Model {
    fn encoder(&self) -> &dyn Backbone {
        &self.encoder
    }

    fn write_encoder_kv(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        self.layers.iter().try_for_each(|layer| layer.cross.write_encoder_kv(states, cache, rows))
    }

    fn forward(&self, batch: &Batch, encoder_kv: &EncoderKv, hook: LayerHook<'_>) -> Result<Tensor> {
        let x = self.encoder.embed_tokens.embed(&batch.ids, 1.0, None)?;
        let last = self.layers.len();
        let x =
            run_layers(x, &self.layers, &mut skip_last(last, hook), |_, layer, x| layer.forward(x, batch, encoder_kv))?;
        let x = self.norm.forward(&batch.select_outputs(&x)?)?;
        hook(last, &x);
        Ok(x)
    }

    fn head(&self) -> &LmHead {
        &self.head
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn cache(&self) -> KvCacheShape {
        KvCacheShape { layers: self.layers.len(), heads: self.heads.kv_heads, size: self.heads.size }
    }
}

/// Decoder block: h = x + Attn(norm(x)); i = h + CrossAttn(norm(h)); y = i + Mlp(norm(i)).
struct Layer {
    attention_norm: RmsNorm,
    attention: GroupedQueryAttention,
    cross_norm: RmsNorm,
    cross: CrossAttention,
    norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn load(block: &Weights, c: &Config, s: &Sizes, heads: Heads, i: usize) -> Result<Layer> {
        let w = block.sub(i).sub("layer");
        let (self_attention, cross) = (w.sub("0.SelfAttention"), w.sub("1.EncDecAttention"));
        let norm = |i: usize| c.norm(&w.sub(i).sub("layer_norm"));
        // The first T5's files have a bias table for cross-attention that the model never uses.
        cross.skip("relative_attention_bias.weight");
        let qkv = c.projections(s, &self_attention, &["q", "k", "v"])?;
        Ok(Layer {
            attention_norm: norm(0)?,
            attention: GroupedQueryAttention {
                scale: 1.0,
                bias: c.bias(s, block, i, false)?,
                ..GroupedQueryAttention::new(qkv, c.output(s, &self_attention)?, heads, i)
            },
            cross_norm: norm(1)?,
            cross: CrossAttention {
                query: c.projections(s, &cross, &["q"])?,
                keys: c.projections(s, &cross, &["k", "v"])?,
                output: c.output(s, &cross)?,
                heads,
                layer: i,
            },
            norm: norm(2)?,
            mlp: c.mlp(s, &w.sub("2.DenseReluDense"))?,
        })
    }

    fn forward(&self, x: &Tensor, b: &Batch, encoder_kv: &EncoderKv) -> Result<Tensor> {
        let h = self.attention.forward_residual(&self.attention_norm.forward(x)?, b, x)?;
        let h = self.cross.forward_residual(&self.cross_norm.forward(&h)?, b, encoder_kv, &h)?;
        self.mlp.forward_residual(&self.norm.forward(&h)?, &h)
    }
}

/// Cross-attention: softmax(q · kᵀ) v over the encoder's hidden states of an input.
struct CrossAttention {
    query: Linear,
    /// Fused key and value projection, to `[tokens, 2, heads, size]`.
    keys: Linear,
    output: Linear,
    heads: Heads,
    layer: usize,
}

impl CrossAttention {
    fn write_encoder_kv(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        let Heads { count, size, .. } = self.heads;
        let kv = self.keys.forward(states)?.reshape(&[states.dims()[0], 2, count, size])?;
        Ok(cache.write(self.layer, &kv.select(1, 0)?, &kv.select(1, 1)?, rows)?)
    }

    fn forward_residual(&self, x: &Tensor, b: &Batch, encoder_kv: &EncoderKv, residual: &Tensor) -> Result<Tensor> {
        let Heads { count, size, .. } = self.heads;
        let tokens = b.segments.tokens();
        let q = self.query.forward(x)?.reshape(&[tokens, count, size])?;
        let [k, v] = encoder_kv.cache.layer(self.layer)?;
        let params = Attention {
            queries: b.segments.clone(),
            keys: Keys::Paged(encoder_kv.pages.clone()),
            scale: 1.0,
            cap: None,
            mask: Mask::All,
            bias: Bias::None,
        };
        let attended = attention(&q, k, v, &params)?.reshape(&[tokens, count * size])?;
        Ok(self.output.forward_residual(&attended, residual)?)
    }
}
