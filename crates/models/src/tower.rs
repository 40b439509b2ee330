//! What the towers of CLIP and SigLIP have in common: tables at the door and a stack of pre-norm blocks.

use crate::config::{activation, head_size, parse};
use crate::decoder::Heads;
use crate::mlp::Mlp;
use crate::{Batch, Error, LayerHook, Limits, Result};
use sconce_ops::{Attention, LayerNorm, Linear, Tensor, Weights, at, attention, embed};
use serde::Deserialize;
use serde_json::Value;

/// `config` with what it leaves out as `defaults` has it: the files of both families say only what differs.
pub(crate) fn filled(config: &Value, mut defaults: Value) -> Result<Value> {
    match (config.as_object(), defaults.as_object_mut()) {
        (Some(config), Some(all)) => all.extend(config.iter().map(|(k, v)| (k.clone(), v.clone()))),
        _ => return Err(Error::Config("a tower's configuration is not an object".into())),
    }
    Ok(defaults)
}

/// The sizes of a stack.
#[derive(Deserialize)]
pub(crate) struct Shape {
    pub(crate) hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
}

impl Shape {
    pub(crate) fn norm(&self, w: &Weights) -> Result<LayerNorm> {
        Ok(LayerNorm::load(w, self.hidden_size, self.layer_norm_eps, true)?)
    }

    pub(crate) fn heads(&self) -> Result<Heads> {
        let count = self.num_attention_heads;
        Ok(Heads { count, shared: count, size: head_size(self.hidden_size, count)? })
    }
}

/// word + position.
pub(crate) struct Words {
    words: Tensor,
    positions: Tensor,
    limits: Limits,
}

#[derive(Deserialize)]
struct Tables {
    vocab_size: usize,
    max_position_embeddings: usize,
}

impl Words {
    pub(crate) fn load(w: &Weights, config: &Value, hidden: usize) -> Result<Words> {
        let c: Tables = parse(config)?;
        Ok(Words {
            words: w.sub("token_embedding").tensor("weight", &[c.vocab_size, hidden])?,
            positions: w.sub("position_embedding").tensor("weight", &[c.max_position_embeddings, hidden])?,
            limits: Limits::new(c.vocab_size, c.max_position_embeddings),
        })
    }

    pub(crate) fn forward(&self, b: &Batch) -> Result<Tensor> {
        Ok(embed(&[(&self.words, &b.ids), (&self.positions, &b.positions)])?)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }
}

/// Blocks on top of each other.
pub(crate) struct Stack(Vec<Block>);

impl Stack {
    pub(crate) fn load(w: &Weights, shape: &Shape) -> Result<Stack> {
        (0..shape.num_hidden_layers)
            .map(|i| Block::load(&w.sub("layers").sub(i), shape))
            .collect::<Result<_>>()
            .map(Stack)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// `watch` sees what each block reads; what the last one gives is the tower's to show, behind its norm.
    pub(crate) fn forward(&self, mut x: Tensor, how: &Attention, watch: LayerHook<'_>) -> Result<Tensor> {
        for (i, block) in self.0.iter().enumerate() {
            let _at = at("layer", i);
            watch(i, &x);
            x = block.forward(&x, how)?;
        }
        Ok(x)
    }
}

/// Pre-norm block: h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    output: Linear,
    heads: Heads,
    norm2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn load(w: &Weights, shape: &Shape) -> Result<Block> {
        let hidden = shape.hidden_size;
        let attn = w.sub("self_attn");
        Ok(Block {
            norm1: shape.norm(&w.sub("layer_norm1"))?,
            qkv: Linear::stacked(&["q_proj", "k_proj", "v_proj"].map(|name| attn.sub(name)), hidden, hidden, true)?,
            output: Linear::load(&attn.sub("out_proj"), hidden, hidden, true)?,
            heads: shape.heads()?,
            norm2: shape.norm(&w.sub("layer_norm2"))?,
            mlp: mlp(&w.sub("mlp"), shape)?,
        })
    }

    fn forward(&self, x: &Tensor, how: &Attention) -> Result<Tensor> {
        let (tokens, Heads { count, size, .. }) = (x.dims()[0], self.heads);
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?.reshape(&[tokens, 3, count, size])?;
        let (q, k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?); // [tokens, heads, size]
        let attended = attention(&q, &k, &v, how)?.reshape(&[tokens, count * size])?;
        let h = self.output.forward_residual(&attended, x)?;
        self.mlp.forward_residual(&self.norm2.forward(&h)?, &h)
    }
}

/// fc2(act(fc1(x))).
pub(crate) fn mlp(w: &Weights, shape: &Shape) -> Result<Mlp> {
    let (hidden, inner) = (shape.hidden_size, shape.intermediate_size);
    Ok(Mlp::Plain {
        up: Linear::load(&w.sub("fc1"), hidden, inner, true)?.with(activation(&shape.hidden_act)?),
        down: Linear::load(&w.sub("fc2"), inner, hidden, true)?,
    })
}
