//! What language models share: attention whose keys several heads share and a cache keeps, the block around it, and
//! the stack of blocks between the word table and the last norm.

use crate::block::{Layer, Norm, but_last, through};
use crate::mlp::Mlp;
use crate::{Batch, Encoder, Error, LayerHook, Limits, Result};
use sconce_ops::{Attention, Bias, Keys, KvCacheShape, Linear, Mask, Projected, Rotary, Tensor, Weights, attention};

/// Heads of a block's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// Of queries.
    pub count: usize,
    /// Of keys and values.
    pub shared: usize,
    /// Of each.
    pub size: usize,
}

impl Heads {
    /// Heads that can share their keys.
    pub(crate) fn checked(count: usize, shared: usize, size: usize) -> Result<Heads> {
        let sound = shared > 0 && count.is_multiple_of(shared) && size > 0 && count > 0;
        let fits = count.checked_mul(3).and_then(|n| n.checked_mul(size)).is_some();
        if sound && fits {
            return Ok(Heads { count, shared, size });
        }
        Err(Error::Config(format!("{count} heads of {size} over {shared} of keys and values")))
    }

    /// Rows of queries, keys and values below each other.
    pub(crate) fn rows(&self) -> [usize; 3] {
        [self.count, self.shared, self.shared].map(|heads| heads.saturating_mul(self.size))
    }

    /// q, k and v of the attention under `w` as one, from a width of `n`.
    pub(crate) fn projections(&self, w: &Weights, n: usize, bias: bool) -> Result<Linear> {
        let parts = ["q_proj", "k_proj", "v_proj"].map(|name| w.sub(name));
        Ok(Linear::joined(&parts.into_iter().zip(self.rows()).collect::<Vec<_>>(), n, bias)?)
    }

    /// 1 / √size.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }
}

/// softmax(q · kᵀ) v with keys that several heads share (Ainslie et al. 2023, arXiv:2305.13245), over the batch itself or over
/// what a cache keeps of its sequences.
pub(crate) struct GroupedQueryAttention {
    /// To `[tokens, heads + 2 · shared, size]`.
    pub qkv: Linear,
    pub output: Linear,
    pub heads: Heads,
    /// Of queries and of keys, head by head.
    pub norms: Option<[Norm; 2]>,
    pub rotary: Option<Rotary>,
    pub scale: f32,
    pub cap: Option<f32>,
    pub window: Option<usize>,
    pub bias: Bias,
    /// Whose place in the cache is this one's.
    pub layer: usize,
}

impl GroupedQueryAttention {
    /// Without norms, caps, windows and biases; scaled by 1 / √size.
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
            window: None,
            bias,
            layer,
        }
    }

    pub(crate) fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        Ok(self.output.forward(&self.mix(x, b)?)?)
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, b: &Batch, residual: &Tensor) -> Result<Tensor> {
        Ok(self.output.forward_residual(&self.mix(x, b)?, residual)?)
    }

    fn mix(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let Heads { count, shared, size } = self.heads;
        let tokens = b.segments.tokens();
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, count + 2 * shared, size])?;
        let part = |start, heads| qkv.narrow(1, start, heads);
        let (mut q, mut k, v) = (part(0, count)?, part(count, shared)?, part(count + shared, shared)?);
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let (k, v, keys) = match &b.kept {
            Some(kept) => {
                let cache @ [keys, values] = kept.cache.layer(self.layer)?;
                match &self.rotary {
                    Some(rotary) => {
                        let x = Projected { q: &q, k: &k, v: &v, positions: &b.positions };
                        q = rotary.forward_and_write_kv(x, cache, &kept.rows)?;
                    }
                    None => kept.cache.write(self.layer, &k, &v, &kept.rows)?,
                }
                (keys.clone(), values.clone(), Keys::Paged(kept.pages.clone()))
            }
            None => {
                if let Some(rotary) = &self.rotary {
                    (q, k) = (rotary.forward(&q, &b.positions)?, rotary.forward(&k, &b.positions)?);
                }
                (k.into(), v.into(), b.keys.clone().into())
            }
        };
        let sees = self.window.map_or(Mask::Causal, Mask::Recent);
        let bias = self.bias.clone();
        let how = Attention { queries: b.segments.clone(), keys, scale: self.scale, cap: self.cap, sees, bias };
        Ok(attention(&q, &k, &v, &how)?.reshape(&[tokens, count * size])?)
    }
}

/// A block whose second half reads what the first one gives, or stands beside it.
pub(crate) struct Block {
    pub attention_norm: Norm,
    pub attention: GroupedQueryAttention,
    pub second: Second,
    pub mlp: Mlp,
}

/// What the second half of a block reads.
pub(crate) enum Second {
    /// h = x + Attn(norm(x)); y = h + Mlp(norm'(h)).
    Behind(Norm),
    /// y = x + Attn(norm(x)) + Mlp(norm'(x)).
    Beside(Norm),
    /// y = x + Attn(norm(x)) + Mlp(norm(x)).
    Shared,
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let normed = self.attention_norm.forward(x)?;
        let h = self.attention.forward_residual(&normed, b, x)?;
        match &self.second {
            Second::Behind(norm) => self.mlp.forward_residual(&norm.forward(&h)?, &h),
            Second::Beside(norm) => self.mlp.forward_residual(&norm.forward(x)?, &h),
            Second::Shared => self.mlp.forward_residual(&normed, &h),
        }
    }
}

/// Words, blocks, the last norm.
pub(crate) struct Decoder<L> {
    /// The word table, which the head may share.
    pub words: Linear,
    /// What words are multiplied with.
    pub scale: f32,
    /// Learned positions.
    pub positions: Option<Tensor>,
    pub layers: Vec<L>,
    pub norm: Norm,
    pub heads: Heads,
    pub limits: Limits,
}

/// The word table `[vocabulary, hidden]` under `w`.
pub(crate) fn words(w: &Weights, vocabulary: usize, hidden: usize) -> Result<Linear> {
    Ok(Linear::load(&w.of_head(), hidden, vocabulary, false)?)
}

impl<L: Layer> Encoder for Decoder<L> {
    fn forward(&self, b: &Batch, watch: LayerHook<'_>) -> Result<Tensor> {
        let also = self.positions.as_ref().map(|table| (table, &b.positions));
        let x = self.words.embed(&b.ids, self.scale, also)?;
        let last = self.layers.len();
        let x = through(x, &self.layers, &mut but_last(last, watch), |_, layer, x| layer.forward(x, b))?;
        let x = self.norm.forward(&b.wanted(&x)?)?;
        watch(last, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.words.inputs()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn cache(&self) -> Option<KvCacheShape> {
        let Heads { shared, size, .. } = self.heads;
        Some(KvCacheShape { layers: self.layers.len(), heads: shared, size })
    }
}
