//! Parts that language models share: grouped-query attention with a KV cache, the block around it,
//! and the decoder (token embeddings, blocks, final norm).

use crate::block::{Layer, Norm, run_layers, skip_last};
use crate::mlp::Mlp;
use crate::{Backbone, Batch, Error, LayerHook, Limits, Result};
use sconce_ops::{Attention, Bias, Keys, KvCacheShape, Linear, Mask, Projected, Rotary, Tensor, Weights, attention};

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Query heads.
    pub count: usize,
    /// Key and value heads; fewer than `count` in grouped-query attention (GQA), 1 in multi-query
    /// attention (MQA).
    pub kv_heads: usize,
    /// The size of one head.
    pub size: usize,
}

impl Heads {
    /// Fails unless `count` is a multiple of `kv_heads`.
    pub(crate) fn checked(count: usize, kv_heads: usize, size: usize) -> Result<Heads> {
        let valid = kv_heads > 0 && count.is_multiple_of(kv_heads) && size > 0 && count > 0;
        let fits = count.checked_mul(3).and_then(|n| n.checked_mul(size)).is_some();
        if valid && fits {
            return Ok(Heads { count, kv_heads, size });
        }
        Err(Error::Config(format!(
            "{count} attention heads of size {size} with {kv_heads} key-value heads: sizes must be positive, and the number of heads a multiple of that of key-value heads"
        )))
    }

    /// Output rows of the query, key and value projections.
    pub(crate) fn rows(&self) -> [usize; 3] {
        [self.count, self.kv_heads, self.kv_heads].map(|heads| heads.saturating_mul(self.size))
    }

    /// The fused QKV projection (`q_proj`, `k_proj`, `v_proj` under `w`) of `n` inputs.
    pub(crate) fn projections(&self, w: &Weights, n: usize, bias: bool) -> Result<Linear> {
        let parts = ["q_proj", "k_proj", "v_proj"].map(|name| w.sub(name));
        Ok(Linear::joined(&parts.into_iter().zip(self.rows()).collect::<Vec<_>>(), n, bias)?)
    }

    /// Maps a row of the fused QKV projection (all queries, then all keys, then all values) to its
    /// row in files that store each group's queries, key and value together.
    pub(crate) fn grouped_row(&self) -> impl Fn(usize) -> usize + Sync + use<> {
        let Heads { count, kv_heads, size } = *self;
        let queries = count / kv_heads;
        move |row| {
            let (head, element) = (row / size, row % size);
            let (group, within) = match head {
                _ if head < count => (head / queries, head % queries),
                _ if head < count + kv_heads => (head - count, queries),
                _ => (head - count - kv_heads, queries + 1),
            };
            (group * (queries + 2) + within) * size + element
        }
    }

    /// 1 / √size.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }
}

/// Grouped-query attention (GQA; Ainslie et al. 2023, arXiv:2305.13245): softmax(q · kᵀ) v in which
/// several query heads share a key-value head. Keys and values come from the batch itself or, if it
/// has one, from the KV cache.
pub(crate) struct GroupedQueryAttention {
    /// Fused QKV projection, to `[tokens, heads + 2 · kv_heads, size]`.
    pub qkv: Linear,
    pub output: Linear,
    pub heads: Heads,
    /// QK-norm: norms over each query head and each key head.
    pub norms: Option<[Norm; 2]>,
    pub rotary: Option<Rotary>,
    pub scale: f32,
    pub cap: Option<f32>,
    pub mask: Mask,
    pub bias: Bias,
    /// The index of the layer in the KV cache.
    pub layer: usize,
}

impl GroupedQueryAttention {
    /// Causal attention scaled by 1 / √size, without norms, RoPE, soft-capping, window and bias.
    pub(crate) fn new(qkv: Linear, output: Linear, heads: Heads, layer: usize) -> GroupedQueryAttention {
        let (scale, bias) = (heads.scale(), Bias::None);
        GroupedQueryAttention {
            qkv,
            output,
            heads,
            norms: None,
            rotary: None,
            scale,
            cap: None,
            mask: Mask::Causal,
            bias,
            layer,
        }
    }

    pub(crate) fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        Ok(self.output.forward(&self.attend(x, b)?)?)
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, b: &Batch, residual: &Tensor) -> Result<Tensor> {
        Ok(self.output.forward_residual(&self.attend(x, b)?, residual)?)
    }

    fn attend(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let Heads { count, kv_heads, size } = self.heads;
        let tokens = b.segments.tokens();
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, count + 2 * kv_heads, size])?;
        let part = |start, heads| qkv.narrow(1, start, heads);
        let (mut q, mut k, v) = (part(0, count)?, part(count, kv_heads)?, part(count + kv_heads, kv_heads)?);
        if let Some([q_norm, k_norm]) = &self.norms {
            (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
        }
        let (k, v, keys) = match &b.kv {
            Some(kv) => {
                let cache @ [keys, values] = kv.cache.layer(self.layer)?;
                match &self.rotary {
                    Some(rotary) => {
                        let x = Projected { q: &q, k: &k, v: &v, positions: &b.positions };
                        q = rotary.forward_and_write_kv(x, cache, &kv.rows)?;
                    }
                    None => kv.cache.write(self.layer, &k, &v, &kv.rows)?,
                }
                (keys.clone(), values.clone(), Keys::Paged(kv.pages.clone()))
            }
            None => {
                if let Some(rotary) = &self.rotary {
                    (q, k) = (rotary.forward(&q, &b.positions)?, rotary.forward(&k, &b.positions)?);
                }
                (k.into(), v.into(), b.keys.clone().into())
            }
        };
        let (scale, cap, mask, bias) = (self.scale, self.cap, self.mask, self.bias.clone());
        let params = Attention { queries: b.segments.clone(), keys, scale, cap, mask, bias };
        Ok(attention(&q, &k, &v, &params)?.reshape(&[tokens, count * size])?)
    }
}

/// A decoder block: attention and MLP, sequential or parallel.
pub(crate) struct Block {
    pub attention_norm: Norm,
    pub attention: GroupedQueryAttention,
    pub layout: Layout,
    pub mlp: Mlp,
}

/// How attention and MLP of a block are combined.
pub(crate) enum Layout {
    /// h = x + Attn(norm(x)); y = h + Mlp(norm'(h)).
    Sequential(Norm),
    /// y = x + Attn(norm(x)) + Mlp(norm'(x)).
    Parallel(Norm),
    /// y = x + Attn(norm(x)) + Mlp(norm(x)).
    ParallelSharedNorm,
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let normed = self.attention_norm.forward(x)?;
        let h = self.attention.forward_residual(&normed, b, x)?;
        match &self.layout {
            Layout::Sequential(norm) => self.mlp.forward_residual(&norm.forward(&h)?, &h),
            Layout::Parallel(norm) => self.mlp.forward_residual(&norm.forward(x)?, &h),
            Layout::ParallelSharedNorm => self.mlp.forward_residual(&normed, &h),
        }
    }
}

/// A decoder-only language model: token embeddings, blocks, final norm. With attention in both
/// directions it is an encoder.
pub(crate) struct Decoder<L> {
    /// The token embedding table, which the LM head may share (tied embeddings).
    pub embed_tokens: Linear,
    /// The factor that token embeddings are multiplied with.
    pub scale: f32,
    /// Learned position embeddings.
    pub positions: Option<Tensor>,
    pub layers: Vec<L>,
    pub norm: Norm,
    pub heads: Heads,
    pub limits: Limits,
    /// A projection after the norm.
    pub projection: Option<Linear>,
    /// Whether attention is causal. Without it, keys and values of earlier tokens depend on later
    /// ones, so there is no KV cache.
    pub causal: bool,
}

/// Loads the token embedding table `[vocabulary, hidden]` under `w`.
pub(crate) fn embed_tokens(w: &Weights, vocabulary: usize, hidden: usize) -> Result<Linear> {
    Ok(Linear::load(&w.of_head(), hidden, vocabulary, false)?)
}

impl<L: Layer> Backbone for Decoder<L> {
    fn forward(&self, b: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let positions = self.positions.as_ref().map(|table| (table, &b.positions));
        let x = self.embed_tokens.embed(&b.ids, self.scale, positions)?;
        let last = self.layers.len();
        let x = run_layers(x, &self.layers, &mut skip_last(last, hook), |_, layer, x| layer.forward(x, b))?;
        let mut x = self.norm.forward(&b.select_outputs(&x)?)?;
        if let Some(projection) = &self.projection {
            x = projection.forward(&x)?;
        }
        hook(last, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.projection.as_ref().map_or(self.embed_tokens.inputs(), Linear::outputs)
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn cache(&self) -> Option<KvCacheShape> {
        let Heads { kv_heads, size, .. } = self.heads;
        self.causal.then_some(KvCacheShape { layers: self.layers.len(), heads: kv_heads, size })
    }
}
