//! Parts that several architectures share unchanged: self-attention with a fused QKV projection,
//! post-norm and pre-norm blocks, and the encoder that consists of embeddings and a stack of blocks
//! (BERT's; other families only name the tensors differently).

use crate::mlp::Mlp;
use crate::{Backbone, Batch, LayerHook, Limits, Result};
use sconce_ops::{
    Activation, Attention, Bias, LayerNorm, Linear, Mask, RmsNorm, Rotary, Table, Tensor, Weights, at, attention,
};

/// Sizes of a block.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub heads: usize,
    /// Size of one head.
    pub size: usize,
    /// Intermediate size of the MLP.
    pub inner: usize,
    pub activation: Activation,
    pub eps: f32,
}

/// The tensor names of a post-norm block.
pub(crate) struct Names {
    pub qkv: [&'static str; 3],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub norm: &'static str,
}

/// BERT's tensor names.
pub(crate) const BERT: Names = Names {
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

/// ALiBi slopes (Press et al. 2021, arXiv:2108.12409): powers of 2^(−8 / heads). If the number of
/// heads is not a power of two, they are the slopes for the next lower power, followed by every
/// second slope for the next higher one.
pub(crate) fn alibi_slopes(heads: usize) -> impl Iterator<Item = f32> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let of = |count: usize| (1..=count).map(move |i| (-8.0 * i as f64 / count as f64).exp2() as f32);
    of(below).chain(of(2 * below).step_by(2)).take(heads)
}

/// RMS norm or layer norm.
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

/// Multi-head self-attention, softmax(scale · q · kᵀ + bias) v over each sequence, then the output
/// projection.
pub(crate) struct SelfAttention {
    /// Fused QKV projection, to `[tokens, 3, heads, size]`, or to `[tokens, heads, 3, size]` if
    /// `by_head`.
    pub qkv: Linear,
    pub by_head: bool,
    pub output: Linear,
    pub heads: usize,
    pub size: usize,
    pub scale: f32,
    pub mask: Mask,
    pub bias: Bias,
    pub rotary: Option<Rotary>,
}

impl SelfAttention {
    /// Full attention scaled by 1 / √size, without bias and rotary embedding.
    pub(crate) fn new(qkv: Linear, output: Linear, heads: usize, size: usize) -> SelfAttention {
        let (scale, mask, bias) = (1.0 / (size as f32).sqrt(), Mask::All, Bias::None);
        SelfAttention { qkv, by_head: false, output, heads, size, scale, mask, bias, rotary: None }
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, b: &Batch, residual: &Tensor) -> Result<Tensor> {
        Ok(self.output.forward_residual(&self.attend(x, b)?, residual)?)
    }

    /// norm(x + Attn(x)).
    pub(crate) fn forward_normed(&self, x: &Tensor, b: &Batch, norm: &LayerNorm) -> Result<Tensor> {
        Ok(self.output.forward_normed(&self.attend(x, b)?, x, norm)?)
    }

    fn attend(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        self.mix(&self.qkv.forward(x)?, b)
    }

    /// Attention, from the result of the QKV projection to the input of the output projection.
    pub(crate) fn mix(&self, qkv: &Tensor, b: &Batch) -> Result<Tensor> {
        let (tokens, heads, size) = (b.segments.tokens(), self.heads, self.size);
        let (q, k, v) = if self.by_head {
            let qkv = qkv.reshape(&[tokens, heads, 3, size])?;
            (qkv.select(2, 0)?, qkv.select(2, 1)?, qkv.select(2, 2)?)
        } else {
            let qkv = qkv.reshape(&[tokens, 3 * heads, size])?;
            let mut qk = qkv.narrow(1, 0, 2 * heads)?;
            if let Some(rotary) = &self.rotary {
                // Both at once.
                qk = match &b.rotary {
                    Some(of_batch) => of_batch.forward(&qk)?,
                    None => rotary.forward(&qk, &b.positions)?,
                };
            }
            (qk.narrow(1, 0, heads)?, qk.narrow(1, heads, heads)?, qkv.narrow(1, 2 * heads, heads)?)
        }; // [tokens, heads, size]
        let params = Attention { mask: self.mask, bias: self.bias.clone(), ..b.attention(self.scale) };
        Ok(attention(&q, &k, &v, &params)?.reshape(&[tokens, heads * size])?)
    }
}

/// Post-norm block: h = norm(x + Attn(x)); y = norm(h + Mlp(h)).
pub(crate) struct PostNorm {
    pub attention: SelfAttention,
    pub attention_norm: LayerNorm,
    pub mlp: Mlp,
    pub norm: LayerNorm,
}

impl PostNorm {
    pub(crate) fn load(w: &Weights, s: &Shape, names: &Names) -> Result<PostNorm> {
        let qkv = Linear::stacked(&names.qkv.map(|name| w.sub(name)), s.hidden, s.heads * s.size, true)?;
        PostNorm::with_qkv(qkv, w, s, names)
    }

    /// With a QKV projection that is already loaded.
    pub(crate) fn with_qkv(qkv: Linear, w: &Weights, s: &Shape, names: &Names) -> Result<PostNorm> {
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

/// Pre-norm block: h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
pub(crate) struct PreNorm {
    /// `None` if the block's input is already normalized.
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

/// norm(word + position + type); position and type embeddings are optional.
pub(crate) struct Embeddings {
    pub words: Table,
    pub positions: Option<Tensor>,
    pub types: Option<Tensor>,
    pub norm: LayerNorm,
}

impl Embeddings {
    /// Loads tables of the sizes in `limits`, under BERT's names; `positions` is the number of rows
    /// of the position table.
    pub(crate) fn load(w: &Weights, limits: &Limits, positions: Option<usize>, s: &Shape) -> Result<Embeddings> {
        let table = |name, rows| w.sub(name).tensor("weight", &[rows, s.hidden]);
        Ok(Embeddings {
            words: Table::load(&w.sub("word_embeddings"), "weight", [limits.vocabulary, s.hidden])?,
            positions: positions.map(|rows| table("position_embeddings", rows)).transpose()?,
            types: limits.types.map(|rows| table("token_type_embeddings", rows)).transpose()?,
            norm: LayerNorm::load(&w.sub("LayerNorm"), s.hidden, s.eps, true)?,
        })
    }

    pub(crate) fn forward(&self, b: &Batch) -> Result<Tensor> {
        let positions = self.positions.as_ref().map(|table| (table, &b.positions));
        let types = self.types.as_ref().map(|table| (table, &b.types));
        let others: Vec<_> = positions.into_iter().chain(types).collect();
        Ok(self.words.embed_normed(&b.ids, &others, &self.norm)?)
    }
}

/// Runs the layers in order. Sets the layer's name for errors and plans, and passes its output to
/// `hook`.
pub(crate) fn run_layers<L>(
    mut x: Tensor,
    layers: &[L],
    hook: LayerHook<'_>,
    run: impl Fn(usize, &L, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    hook(0, &x);
    for (i, layer) in layers.iter().enumerate() {
        let _at = at("layer", i);
        x = run(i, layer, &x)?;
        hook(i + 1, &x);
    }
    Ok(x)
}

/// Wraps `hook` to skip the output of the last layer, for models that report it after the final
/// norm.
pub(crate) fn skip_last(layers: usize, hook: LayerHook<'_>) -> impl FnMut(usize, &Tensor) {
    move |i, x| {
        if i < layers {
            hook(i, x);
        }
    }
}

/// A block of an encoder or a decoder.
pub(crate) trait Layer: Send {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor>;
}

/// An encoder: embeddings and a stack of blocks.
pub(crate) struct Stack<L> {
    pub embeddings: Embeddings,
    /// From the embedding size to the hidden size, if they differ.
    pub project: Option<Linear>,
    pub layers: Vec<L>,
    /// The final norm.
    pub norm: Option<LayerNorm>,
    pub hidden_size: usize,
    pub limits: Limits,
}

impl<L> Stack<L> {
    /// With embeddings as wide as the blocks and no final norm.
    pub(crate) fn new(embeddings: Embeddings, layers: Vec<L>, hidden_size: usize, limits: Limits) -> Stack<L> {
        Stack { embeddings, project: None, layers, norm: None, hidden_size, limits }
    }
}

impl<L: Layer> Backbone for Stack<L> {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let mut x = self.embeddings.forward(batch)?;
        if let Some(project) = &self.project {
            x = project.forward(&x)?;
        }
        let run = |_, layer: &L, x: &Tensor| layer.forward(x, batch);
        let Some(norm) = &self.norm else { return run_layers(x, &self.layers, hook, run) };
        let last = self.layers.len();
        let x = norm.forward(&run_layers(x, &self.layers, &mut skip_last(last, hook), run)?)?;
        hook(last, &x);
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
    fn alibi_slopes_cover_any_number_of_heads() {
        let slopes = |heads| alibi_slopes(heads).collect::<Vec<_>>();
        assert_eq!(slopes(1), [2f32.powi(-8)]);
        assert_eq!(slopes(4), [-2, -4, -6, -8].map(|e| 2f32.powi(e)));
        assert_eq!(slopes(6), [-2, -4, -6, -8, -1, -3].map(|e| 2f32.powi(e)));
    }
}
