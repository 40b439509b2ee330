//! What several architectures share to the letter: self-attention over one fused projection, the blocks around it, and the
//! encoder that is embeddings and a stack of such blocks (BERT's, with other names in other files).

use crate::mlp::Mlp;
use crate::{Batch, Encoder, LayerHook, Limits, Result};
use sconce_ops::{
    Activation, Attention, Bias, LayerNorm, Linear, Mask, RmsNorm, Rotary, Tensor, Weights, at, attention, embed_normed,
};

/// Widths of a block.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub heads: usize,
    /// Of one head.
    pub size: usize,
    /// Between the two products of the MLP.
    pub inner: usize,
    pub activation: Activation,
    pub eps: f32,
}

/// Where a file keeps the parts of a post-norm block.
pub(crate) struct Names {
    pub qkv: [&'static str; 3],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub norm: &'static str,
}

/// As BERT has them.
pub(crate) const BERT: Names = Names {
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

/// Slopes of ALiBi (Press et al. 2021, arXiv:2108.12409): powers of 2^(−8 / heads). For a count that is no power of two: those of
/// the power below, and between them every second one of the power above.
pub(crate) fn alibi_slopes(heads: usize) -> impl Iterator<Item = f32> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let of = |count: usize| (1..=count).map(move |i| (-8.0 * i as f64 / count as f64).exp2() as f32);
    of(below).chain(of(2 * below).step_by(2)).take(heads)
}

/// A norm of either kind.
pub(crate) enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl Norm {
    pub(crate) fn rms(w: &Weights, size: usize, eps: f32) -> Result<Norm> {
        Ok(Norm::Rms(RmsNorm::load(w, size, eps)?))
    }

    pub(crate) fn layer(w: &Weights, size: usize, eps: f32, bias: bool) -> Result<Norm> {
        Ok(Norm::Layer(LayerNorm::load(w, size, eps, bias)?))
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Norm::Rms(norm) => norm.forward(x)?,
            Norm::Layer(norm) => norm.forward(x)?,
        })
    }
}

/// softmax(scale · q · kᵀ + bias) v over each sequence, then a projection.
pub(crate) struct SelfAttention {
    /// To `[tokens, 3, heads, size]`, or where `by_head` to `[tokens, heads, 3, size]`.
    pub qkv: Linear,
    pub by_head: bool,
    pub output: Linear,
    pub heads: usize,
    pub size: usize,
    pub scale: f32,
    pub sees: Mask,
    pub bias: Bias,
    pub rotary: Option<Rotary>,
}

impl SelfAttention {
    /// Scaled by 1 / √size, and nothing else.
    pub(crate) fn new(qkv: Linear, output: Linear, heads: usize, size: usize) -> SelfAttention {
        let (scale, sees, bias) = (1.0 / (size as f32).sqrt(), Mask::All, Bias::None);
        SelfAttention { qkv, by_head: false, output, heads, size, scale, sees, bias, rotary: None }
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, b: &Batch, residual: &Tensor) -> Result<Tensor> {
        Ok(self.output.forward_residual(&self.mix(x, b)?, residual)?)
    }

    /// norm(x + Attn(x)).
    pub(crate) fn forward_normed(&self, x: &Tensor, b: &Batch, norm: &LayerNorm) -> Result<Tensor> {
        Ok(self.output.forward_normed(&self.mix(x, b)?, x, norm)?)
    }

    fn mix(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let (tokens, heads, size) = (b.segments.tokens(), self.heads, self.size);
        let qkv = self.qkv.forward(x)?;
        let (q, k, v) = if self.by_head {
            let qkv = qkv.reshape(&[tokens, heads, 3, size])?;
            (qkv.select(2, 0)?, qkv.select(2, 1)?, qkv.select(2, 2)?)
        } else {
            let qkv = qkv.reshape(&[tokens, 3 * heads, size])?;
            let mut qk = qkv.narrow(1, 0, 2 * heads)?;
            if let Some(rotary) = &self.rotary {
                qk = rotary.forward(&qk, &b.positions)?; // both at once
            }
            (qk.narrow(1, 0, heads)?, qk.narrow(1, heads, heads)?, qkv.narrow(1, 2 * heads, heads)?)
        }; // [tokens, heads, size]
        let how = Attention { sees: self.sees, bias: self.bias.clone(), ..b.attention(self.scale) };
        Ok(attention(&q, &k, &v, &how)?.reshape(&[tokens, heads * size])?)
    }
}

/// h = norm(x + Attn(x)); y = norm(h + Mlp(h)).
pub(crate) struct PostNorm {
    pub attention: SelfAttention,
    pub attention_norm: LayerNorm,
    pub mlp: Mlp,
    pub norm: LayerNorm,
}

impl PostNorm {
    pub(crate) fn load(w: &Weights, s: &Shape, names: &Names) -> Result<PostNorm> {
        let qkv = Linear::stacked(&names.qkv.map(|name| w.sub(name)), s.hidden, s.heads * s.size, true)?;
        PostNorm::around(qkv, w, s, names)
    }

    /// With queries, keys and values that are there already.
    pub(crate) fn around(qkv: Linear, w: &Weights, s: &Shape, names: &Names) -> Result<PostNorm> {
        let output = Linear::load(&w.sub(names.output), s.heads * s.size, s.hidden, true)?;
        Ok(PostNorm {
            attention: SelfAttention::new(qkv, output, s.heads, s.size),
            attention_norm: LayerNorm::load(&w.sub(names.attention_norm), s.hidden, s.eps, true)?,
            mlp: Mlp::Plain {
                up: Linear::load(&w.sub(names.up), s.hidden, s.inner, true)?.with(s.activation),
                down: Linear::load(&w.sub(names.down), s.inner, s.hidden, true)?,
            },
            norm: LayerNorm::load(&w.sub(names.norm), s.hidden, s.eps, true)?,
        })
    }
}

impl Layer for PostNorm {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.attention.forward_normed(x, b, &self.attention_norm)?;
        self.mlp.forward_normed(&h, &self.norm)
    }
}

/// h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
pub(crate) struct PreNorm {
    /// None where what the block reads is normalised already.
    pub attention_norm: Option<Norm>,
    pub attention: SelfAttention,
    pub norm: Norm,
    pub mlp: Mlp,
}

impl Layer for PreNorm {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let normed = self.attention_norm.as_ref().map(|norm| norm.forward(x)).transpose()?;
        let h = self.attention.forward_residual(normed.as_ref().unwrap_or(x), b, x)?;
        self.mlp.forward_residual(&self.norm.forward(&h)?, &h)
    }
}

/// norm(word + position + type), without what the model does not have.
pub(crate) struct Embeddings {
    pub words: Tensor,
    pub positions: Option<Tensor>,
    pub types: Option<Tensor>,
    pub norm: LayerNorm,
}

impl Embeddings {
    /// Rows as `limits` counts them, with `positions` rows of positions, under BERT's names.
    pub(crate) fn load(w: &Weights, limits: &Limits, positions: Option<usize>, s: &Shape) -> Result<Embeddings> {
        let table = |name, rows| w.sub(name).tensor("weight", &[rows, s.hidden]);
        Ok(Embeddings {
            words: table("word_embeddings", limits.vocabulary)?,
            positions: positions.map(|rows| table("position_embeddings", rows)).transpose()?,
            types: limits.types.map(|rows| table("token_type_embeddings", rows)).transpose()?,
            norm: LayerNorm::load(&w.sub("LayerNorm"), s.hidden, s.eps, true)?,
        })
    }

    pub(crate) fn forward(&self, b: &Batch) -> Result<Tensor> {
        let mut pairs = vec![(&self.words, &b.ids)];
        pairs.extend(self.positions.as_ref().map(|table| (table, &b.positions)));
        pairs.extend(self.types.as_ref().map(|table| (table, &b.types)));
        Ok(embed_normed(&pairs, &self.norm)?)
    }
}

/// One layer after another, each named for the plan and shown to `watch`.
pub(crate) fn through<L>(
    mut x: Tensor,
    layers: &[L],
    watch: LayerHook<'_>,
    run: impl Fn(usize, &L, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    watch(0, &x);
    for (i, layer) in layers.iter().enumerate() {
        let _at = at("layer", i);
        x = run(i, layer, &x)?;
        watch(i + 1, &x);
    }
    Ok(x)
}

/// `watch` before a norm behind the last of so many layers: what that gives is shown behind the norm.
pub(crate) fn but_last(layers: usize, watch: LayerHook<'_>) -> impl FnMut(usize, &Tensor) {
    move |i, x| {
        if i < layers {
            watch(i, x);
        }
    }
}

/// One of the blocks that an encoder is a stack of.
pub(crate) trait Layer: Send {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor>;
}

/// Embeddings, and blocks one after another.
pub(crate) struct Stack<L> {
    pub embeddings: Embeddings,
    /// From the width of the embeddings to that of the blocks, where they differ.
    pub project: Option<Linear>,
    pub layers: Vec<L>,
    /// Behind the last block.
    pub norm: Option<LayerNorm>,
    pub hidden_size: usize,
    pub limits: Limits,
}

impl<L> Stack<L> {
    /// Blocks as wide as the embeddings, without a norm behind them.
    pub(crate) fn new(embeddings: Embeddings, layers: Vec<L>, hidden_size: usize, limits: Limits) -> Stack<L> {
        Stack { embeddings, project: None, layers, norm: None, hidden_size, limits }
    }
}

impl<L: Layer> Encoder for Stack<L> {
    fn forward(&self, batch: &Batch, watch: LayerHook<'_>) -> Result<Tensor> {
        let mut x = self.embeddings.forward(batch)?;
        if let Some(project) = &self.project {
            x = project.forward(&x)?;
        }
        let run = |_, layer: &L, x: &Tensor| layer.forward(x, batch);
        let Some(norm) = &self.norm else { return through(x, &self.layers, watch, run) };
        let last = self.layers.len();
        let x = norm.forward(&through(x, &self.layers, &mut but_last(last, watch), run)?)?;
        watch(last, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

#[cfg(test)]
mod tests {
    use super::alibi_slopes;

    #[test]
    fn slopes_of_any_count_of_heads() {
        let slopes = |heads| alibi_slopes(heads).collect::<Vec<_>>();
        assert_eq!(slopes(1), [2f32.powi(-8)]);
        assert_eq!(slopes(4), [-2, -4, -6, -8].map(|e| 2f32.powi(e)));
        assert_eq!(slopes(6), [-2, -4, -6, -8, -1, -3].map(|e| 2f32.powi(e)));
    }
}
