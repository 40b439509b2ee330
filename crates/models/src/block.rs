//! What several architectures share to the letter: self-attention over one fused projection, the post-norm block around it, and
//! the encoder that is embeddings and a stack of such blocks (BERT's, with other names in other files).

use crate::{Batch, Encoder, Limits, Result, Watch};
use sconce_ops::{
    Activation, Attention, Bias, LayerNorm, Linear, Rotary, Sees, Tensor, Weights, at, attention, embed_normed,
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

/// What scores have beyond q · k.
#[derive(Clone, Default)]
pub(crate) struct Scores<'a> {
    pub scale: f32,
    pub sees: Sees,
    pub bias: Bias,
    pub rotary: Option<&'a Rotary>,
}

impl Scores<'_> {
    /// 1 / √size and nothing else.
    pub(crate) fn scaled(size: usize) -> Self {
        Scores { scale: 1.0 / (size as f32).sqrt(), ..Scores::default() }
    }
}

/// softmax(scores) V over each sequence, then a projection.
pub(crate) struct SelfAttention {
    /// To `[tokens, 3, heads, size]`.
    pub qkv: Linear,
    pub output: Linear,
    pub heads: usize,
    pub size: usize,
}

impl SelfAttention {
    pub(crate) fn forward_residual(
        &self,
        x: &Tensor,
        b: &Batch,
        scores: &Scores<'_>,
        residual: &Tensor,
    ) -> Result<Tensor> {
        Ok(self.output.forward_residual(&self.mix(x, b, scores)?, residual)?)
    }

    /// norm(x + Attn(x)).
    pub(crate) fn forward_normed(
        &self,
        x: &Tensor,
        b: &Batch,
        scores: &Scores<'_>,
        norm: &LayerNorm,
    ) -> Result<Tensor> {
        Ok(self.output.forward_normed(&self.mix(x, b, scores)?, x, norm)?)
    }

    fn mix(&self, x: &Tensor, b: &Batch, scores: &Scores<'_>) -> Result<Tensor> {
        let (tokens, heads) = (b.segments.tokens(), self.heads);
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, 3 * heads, self.size])?;
        let (mut qk, v) = (qkv.narrow(1, 0, 2 * heads)?, qkv.narrow(1, 2 * heads, heads)?);
        if let Some(rotary) = scores.rotary {
            qk = rotary.forward(&qk, &b.positions)?; // both at once
        }
        let (q, k) = (qk.narrow(1, 0, heads)?, qk.narrow(1, heads, heads)?); // [tokens, heads, size]
        let how = Attention { sees: scores.sees, bias: scores.bias.clone(), ..b.attention(scores.scale) };
        Ok(attention(&q, &k, &v, &how)?.reshape(&[tokens, heads * self.size])?)
    }
}

/// h = norm(x + Attn(x)); y = norm(h + Mlp(h)).
pub(crate) struct PostNorm {
    attention: SelfAttention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    scores: Scores<'static>,
}

impl PostNorm {
    pub(crate) fn load(w: &Weights, s: &Shape, names: &Names, scores: Scores<'static>) -> Result<PostNorm> {
        let width = s.heads * s.size;
        let qkv = Linear::stacked(&names.qkv.map(|name| w.sub(name)), s.hidden, width, true)?;
        let output = Linear::load(&w.sub(names.output), width, s.hidden, true)?;
        Ok(PostNorm {
            attention: SelfAttention { qkv, output, heads: s.heads, size: s.size },
            attention_norm: LayerNorm::load(&w.sub(names.attention_norm), s.hidden, s.eps, true)?,
            up: Linear::load(&w.sub(names.up), s.hidden, s.inner, true)?.with(s.activation),
            down: Linear::load(&w.sub(names.down), s.inner, s.hidden, true)?,
            norm: LayerNorm::load(&w.sub(names.norm), s.hidden, s.eps, true)?,
            scores,
        })
    }
}

impl Layer for PostNorm {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.attention.forward_normed(x, b, &self.scores, &self.attention_norm)?;
        Ok(self.down.forward_normed(&self.up.forward(&h)?, &h, &self.norm)?)
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
    watch: Watch<'_>,
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
    pub hidden_size: usize,
    pub limits: Limits,
}

impl<L: Layer> Encoder for Stack<L> {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let mut x = self.embeddings.forward(batch)?;
        if let Some(project) = &self.project {
            x = project.forward(&x)?;
        }
        through(x, &self.layers, watch, |_, layer, x| layer.forward(x, batch))
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
