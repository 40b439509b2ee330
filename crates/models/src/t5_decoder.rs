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
use crate::{Backbone, Batch, EncoderKv, Error, LayerHook, Limits, LmHead, Result, Seq2Seq};
use sconce_ops::{
    Attention, Bias, Keys, KvCache, KvCacheShape, KvTensor, Linear, Mask, RmsNorm, Tensor, Weights, attention,
};
use serde_json::Value;

struct T5Model {
    encoder: T5,
    decoder: Decoder,
    head: LmHead,
}

pub(crate) fn seq2seq(config: &Value, w: &Weights) -> Result<Box<dyn Seq2Seq>> {
    let c: Config = parse(config)?;
    let s = c.sizes()?;
    let encoder = T5::load(config, w)?;
    let lm_head = w.sub("lm_head");
    let decoder = Decoder::load(&model_root(w)?.sub("decoder"), &c, &s)?;
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
    Ok(Box::new(T5Model { encoder, decoder, head: LmHead { out, scale, cap: None } }))
}

/// T5 under a sequence classification head. The encoder reads the text, and so does the decoder,
/// one token later; the head reads the decoder's hidden states.
struct T5Classifier {
    encoder: T5,
    decoder: Decoder,
    /// The decoder's first token.
    start: u32,
}

pub(crate) fn classifier(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let s = c.sizes()?;
    let start = c.decoder_start_token_id.filter(|id| (*id as usize) < s.vocabulary);
    let start = start.ok_or_else(|| {
        Error::Config("a sequence classifier needs a decoder_start_token_id within the vocabulary".into())
    })?;
    let decoder = Decoder::load(&model_root(w)?.sub("decoder"), &c, &s)?;
    Ok(Box::new(T5Classifier { encoder: T5::load(config, w)?, decoder, start }))
}

impl Backbone for T5Classifier {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let states = self.encoder.forward(batch, &mut |_, _| {})?;
        let x = self.encoder.embed_tokens.embed(&batch.shifted_ids(self.start)?, 1.0, None)?;
        self.decoder.forward(x, batch, &Encoded::States(&states), hook)
    }

    fn hidden_size(&self) -> usize {
        self.encoder.hidden_size()
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }
}

impl Seq2Seq for T5Model {
    fn encoder(&self) -> &dyn Backbone {
        &self.encoder
    }

    fn write_encoder_kv(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        self.decoder.layers.iter().try_for_each(|layer| layer.cross.write_encoder_kv(states, cache, rows))
    }

    fn forward(&self, batch: &Batch, encoder_kv: &EncoderKv, hook: LayerHook<'_>) -> Result<Tensor> {
        let x = self.encoder.embed_tokens.embed(&batch.ids, 1.0, None)?;
        self.decoder.forward(x, batch, &Encoded::Kv(encoder_kv), hook)
    }

    fn head(&self) -> &LmHead {
        &self.head
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn cache(&self) -> KvCacheShape {
        let Decoder { layers, heads, .. } = &self.decoder;
        KvCacheShape { layers: layers.len(), heads: heads.kv_heads, size: heads.size }
    }
}

/// Where cross-attention finds what the encoder made of an input.
enum Encoded<'a> {
    /// Keys and values in the KV cache.
    Kv(&'a EncoderKv),
    /// Hidden states, one per token of the batch.
    States(&'a Tensor),
}

/// The decoder's blocks and final norm.
struct Decoder {
    layers: Vec<Layer>,
    norm: RmsNorm,
    heads: Heads,
}

impl Decoder {
    fn load(w: &Weights, c: &Config, s: &Sizes) -> Result<Decoder> {
        w.skip("embed_tokens.weight");
        refuse(s.decoder_layers == 0, || "num_decoder_layers is 0: this model is an encoder only".into())?;
        let heads = Heads::checked(s.heads, s.heads, c.d_kv)?;
        let load = |i| Layer::load(&w.sub("block"), c, s, heads, i);
        let layers = (0..s.decoder_layers).map(load).collect::<Result<Vec<_>>>()?;
        Ok(Decoder { layers, norm: c.norm(&w.sub("final_layer_norm"))?, heads })
    }

    /// Hidden states of the rows that the caller needs, after the final norm. `x` is the token
    /// embeddings.
    fn forward(&self, x: Tensor, batch: &Batch, encoded: &Encoded<'_>, hook: LayerHook<'_>) -> Result<Tensor> {
        let last = self.layers.len();
        let run = |_, layer: &Layer, x: &Tensor| layer.forward(x, batch, encoded);
        let x = run_layers(x, &self.layers, &mut skip_last(last, hook), run)?;
        let x = self.norm.forward(&batch.select_outputs(&x)?)?;
        hook(last, &x);
        Ok(x)
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

    fn forward(&self, x: &Tensor, b: &Batch, encoded: &Encoded<'_>) -> Result<Tensor> {
        let h = self.attention.forward_residual(&self.attention_norm.forward(x)?, b, x)?;
        let h = self.cross.forward_residual(&self.cross_norm.forward(&h)?, b, encoded, &h)?;
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
    /// Keys and values of the encoder's `states`, each `[tokens, heads, size]`.
    fn encoder_kv(&self, states: &Tensor) -> Result<[Tensor; 2]> {
        let Heads { count, size, .. } = self.heads;
        let kv = self.keys.forward(states)?.reshape(&[states.dims()[0], 2, count, size])?;
        Ok([kv.select(1, 0)?, kv.select(1, 1)?])
    }

    fn write_encoder_kv(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        let [k, v] = self.encoder_kv(states)?;
        Ok(cache.write(self.layer, &k, &v, rows)?)
    }

    fn forward_residual(&self, x: &Tensor, b: &Batch, encoded: &Encoded<'_>, residual: &Tensor) -> Result<Tensor> {
        let Heads { count, size, .. } = self.heads;
        let tokens = b.segments.tokens();
        let q = self.query.forward(x)?.reshape(&[tokens, count, size])?;
        let (k, v, keys): (KvTensor, KvTensor, Keys) = match encoded {
            Encoded::Kv(kv) => {
                let [k, v] = kv.cache.layer(self.layer)?;
                (k.clone(), v.clone(), Keys::Paged(kv.pages.clone()))
            }
            Encoded::States(states) => {
                let [k, v] = self.encoder_kv(states)?;
                (k.into(), v.into(), b.keys.clone().into())
            }
        };
        let params =
            Attention { queries: b.segments.clone(), keys, scale: 1.0, cap: None, mask: Mask::All, bias: Bias::None };
        let attended = attention(&q, &k, &v, &params)?.reshape(&[tokens, count * size])?;
        Ok(self.output.forward_residual(&attended, residual)?)
    }
}
