//! T5 whole (Raffel et al. 2019, arXiv:1910.10683): its encoder, and a decoder that looks at what that has read. Also mT5, UMT5,
//! Flan-T5.
//!
//! A block of the decoder is self-attention over what is written so far, cross-attention over the encoder's states, and the MLP,
//! each pre-norm. Cross-attention knows no positions, and its keys and values do not change while an answer is written: they are
//! worked out once an input, and every answer to it looks at the same ones.

use crate::block::{but_last, through};
use crate::config::{parse, refuse};
use crate::decoder::{GroupedQueryAttention, Heads};
use crate::mlp::Mlp;
use crate::t5::{Config, Sizes, T5, trunk};
use crate::{Batch, Encoder, LayerHook, Limits, LmHead, Read, Result, Seq2Seq};
use sconce_ops::{Attention, Bias, Keys, KvCache, KvCacheShape, Linear, Mask, RmsNorm, Tensor, Weights, attention};
use serde_json::Value;

struct Whole {
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
    let (w, own) = (trunk(w)?, w.sub("lm_head"));
    let decoder = w.sub("decoder");
    decoder.skip("embed_tokens.weight");
    refuse(s.decoder_layers == 0, || "num_decoder_layers is 0: this model only reads".into())?;
    let heads = Heads::checked(s.heads, s.heads, c.d_kv)?;
    let load = |i| Layer::load(&decoder.sub("block"), &c, &s, heads, i);
    let layers = (0..s.decoder_layers).map(load).collect::<Result<Vec<_>>>()?;
    // The first T5 read its answers off the word table, whose rows are not small, and made up for it; the later ones have a table
    // of their own for that. A file of the first may hold the one table under both names, and newer ones call every T5 tied.
    let tied = c.scale_decoder_outputs.or(c.tie_word_embeddings).unwrap_or(c.model_type == "t5");
    let has_own = own.has("weight")?;
    let scaled = if c.model_type == "t5" { tied } else { tied && !has_own };
    let out = if scaled || !has_own {
        own.skip("weight");
        encoder.words.clone()
    } else {
        Linear::load(&own, c.d_model, s.vocabulary, false)?
    };
    let scale = if scaled { 1.0 / (c.d_model as f32).sqrt() } else { 1.0 };
    let norm = c.norm(&decoder.sub("final_layer_norm"))?;
    Ok(Box::new(Whole { encoder, layers, norm, head: LmHead { out, scale, cap: None }, heads }))
}

impl Seq2Seq for Whole {
    fn encoder(&self) -> &dyn Encoder {
        &self.encoder
    }

    fn remember(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        self.layers.iter().try_for_each(|layer| layer.cross.remember(states, cache, rows))
    }

    fn forward(&self, batch: &Batch, read: &Read, watch: LayerHook<'_>) -> Result<Tensor> {
        let x = self.encoder.words.embed(&batch.ids, 1.0, None)?;
        let last = self.layers.len();
        let x = through(x, &self.layers, &mut but_last(last, watch), |_, layer, x| layer.forward(x, batch, read))?;
        let x = self.norm.forward(&batch.wanted(&x)?)?;
        watch(last, &x);
        Ok(x)
    }

    fn head(&self) -> &LmHead {
        &self.head
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn cache(&self) -> KvCacheShape {
        KvCacheShape { layers: self.layers.len(), heads: self.heads.shared, size: self.heads.size }
    }
}

/// h = x + Attn(norm(x)); i = h + Cross(norm(h)); y = i + Mlp(norm(i)).
struct Layer {
    attention_norm: RmsNorm,
    attention: GroupedQueryAttention,
    cross_norm: RmsNorm,
    cross: Cross,
    norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn load(block: &Weights, c: &Config, s: &Sizes, heads: Heads, i: usize) -> Result<Layer> {
        let w = block.sub(i).sub("layer");
        let (own, cross) = (w.sub("0.SelfAttention"), w.sub("1.EncDecAttention"));
        let norm = |i: usize| c.norm(&w.sub(i).sub("layer_norm"));
        // The first T5's files hold a table that cross-attention never had a use for.
        cross.skip("relative_attention_bias.weight");
        let qkv = c.projections(s, &own, &["q", "k", "v"])?;
        Ok(Layer {
            attention_norm: norm(0)?,
            attention: GroupedQueryAttention {
                scale: 1.0,
                bias: c.bias(s, block, i, false)?,
                ..GroupedQueryAttention::new(qkv, c.output(s, &own)?, heads, i)
            },
            cross_norm: norm(1)?,
            cross: Cross {
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

    fn forward(&self, x: &Tensor, b: &Batch, read: &Read) -> Result<Tensor> {
        let h = self.attention.forward_residual(&self.attention_norm.forward(x)?, b, x)?;
        let h = self.cross.forward_residual(&self.cross_norm.forward(&h)?, b, read, &h)?;
        self.mlp.forward_residual(&self.norm.forward(&h)?, &h)
    }
}

/// softmax(q · kᵀ) v over the states of an input.
struct Cross {
    query: Linear,
    /// To `[tokens, 2, heads, size]`.
    keys: Linear,
    output: Linear,
    heads: Heads,
    layer: usize,
}

impl Cross {
    fn remember(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()> {
        let Heads { count, size, .. } = self.heads;
        let kv = self.keys.forward(states)?.reshape(&[states.dims()[0], 2, count, size])?;
        Ok(cache.write(self.layer, &kv.select(1, 0)?, &kv.select(1, 1)?, rows)?)
    }

    fn forward_residual(&self, x: &Tensor, b: &Batch, read: &Read, residual: &Tensor) -> Result<Tensor> {
        let Heads { count, size, .. } = self.heads;
        let tokens = b.segments.tokens();
        let q = self.query.forward(x)?.reshape(&[tokens, count, size])?;
        let [k, v] = read.cache.layer(self.layer)?;
        let how = Attention {
            queries: b.segments.clone(),
            keys: Keys::Paged(read.pages.clone()),
            scale: 1.0,
            cap: None,
            sees: Mask::All,
            bias: Bias::None,
        };
        let seen = attention(&q, k, v, &how)?.reshape(&[tokens, count * size])?;
        Ok(self.output.forward_residual(&seen, residual)?)
    }
}
