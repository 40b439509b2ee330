//! Parts that the towers of CLIP and SigLIP share: text embeddings and a stack of pre-norm blocks.

use crate::config::{activation, head_size, parse};
use crate::decoder::Heads;
use crate::mlp::Mlp;
use crate::{Batch, Error, LayerHook, Limits, Result};
use sconce_ops::{Attention, LayerNorm, Linear, Tensor, Weights, at, attention, embed};
use serde::Deserialize;
use serde_json::Value;

/// Adds `defaults` for the fields that `config` omits: the files of both families have only the
/// fields that differ.
pub(crate) fn with_defaults(config: &Value, mut defaults: Value) -> Result<Value> {
    match (config.as_object(), defaults.as_object_mut()) {
        (Some(config), Some(all)) => all.extend(config.iter().map(|(k, v)| (k.clone(), v.clone()))),
        _ => return Err(Error::Config("a tower's configuration is not an object".into())),
    }
    Ok(defaults)
}

/// The `config.json` fields of a tower's transformer.
#[derive(Deserialize)]
pub(crate) struct TowerConfig {
    pub(crate) hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
}

impl TowerConfig {
    pub(crate) fn norm(&self, w: &Weights) -> Result<LayerNorm> {
        Ok(LayerNorm::load(w, self.hidden_size, self.layer_norm_eps, true)?)
    }

    pub(crate) fn heads(&self) -> Result<Heads> {
        let count = self.num_attention_heads;
        Ok(Heads { count, kv_heads: count, size: head_size(self.hidden_size, count)? })
    }
}

/// token + position.
pub(crate) struct TextEmbeddings {
    tokens: Tensor,
    positions: Tensor,
    limits: Limits,
}

#[derive(Deserialize)]
struct TextEmbeddingsConfig {
    vocab_size: usize,
    max_position_embeddings: usize,
}

/// The number of token ids and positions that a text tower's configuration declares.
pub(crate) fn text_limits(config: &Value) -> Result<Limits> {
    let c: TextEmbeddingsConfig = parse(config)?;
    Ok(Limits::new(c.vocab_size, c.max_position_embeddings))
}

impl TextEmbeddings {
    pub(crate) fn load(w: &Weights, config: &Value, hidden: usize) -> Result<TextEmbeddings> {
        let c: TextEmbeddingsConfig = parse(config)?;
        Ok(TextEmbeddings {
            tokens: w.sub("token_embedding").tensor("weight", &[c.vocab_size, hidden])?,
            positions: w.sub("position_embedding").tensor("weight", &[c.max_position_embeddings, hidden])?,
            limits: text_limits(config)?,
        })
    }

    pub(crate) fn forward(&self, b: &Batch) -> Result<Tensor> {
        Ok(embed(&[(&self.tokens, &b.ids), (&self.positions, &b.positions)])?)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }
}

/// A stack of pre-norm blocks.
pub(crate) struct Transformer(Vec<Block>);

impl Transformer {
    pub(crate) fn load(w: &Weights, c: &TowerConfig) -> Result<Transformer> {
        (0..c.num_hidden_layers)
            .map(|i| Block::load(&w.sub("layers").sub(i), c))
            .collect::<Result<_>>()
            .map(Transformer)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// `hook` receives the input of each block. The tower reports the output of the last block,
    /// after its final norm.
    pub(crate) fn forward(&self, mut x: Tensor, params: &Attention, hook: LayerHook<'_>) -> Result<Tensor> {
        for (i, block) in self.0.iter().enumerate() {
            let _at = at("layer", i);
            hook(i, &x);
            x = block.forward(&x, params)?;
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
    fn load(w: &Weights, c: &TowerConfig) -> Result<Block> {
        let hidden = c.hidden_size;
        let attn = w.sub("self_attn");
        Ok(Block {
            norm1: c.norm(&w.sub("layer_norm1"))?,
            qkv: Linear::stacked(&["q_proj", "k_proj", "v_proj"].map(|name| attn.sub(name)), hidden, hidden, true)?,
            output: Linear::load(&attn.sub("out_proj"), hidden, hidden, true)?,
            heads: c.heads()?,
            norm2: c.norm(&w.sub("layer_norm2"))?,
            mlp: mlp(&w.sub("mlp"), c)?,
        })
    }

    fn forward(&self, x: &Tensor, params: &Attention) -> Result<Tensor> {
        let (tokens, Heads { count, size, .. }) = (x.dims()[0], self.heads);
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?.reshape(&[tokens, 3, count, size])?;
        let (q, k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?); // [tokens, heads, size]
        let attended = attention(&q, &k, &v, params)?.reshape(&[tokens, count * size])?;
        let h = self.output.forward_residual(&attended, x)?;
        self.mlp.forward_residual(&self.norm2.forward(&h)?, &h)
    }
}

/// fc2(act(fc1(x))).
pub(crate) fn mlp(w: &Weights, c: &TowerConfig) -> Result<Mlp> {
    let (hidden, inner) = (c.hidden_size, c.intermediate_size);
    Ok(Mlp::Plain {
        up: Linear::load(&w.sub("fc1"), hidden, inner, true)?.with(activation("hidden_act", &c.hidden_act)?),
        down: Linear::load(&w.sub("fc2"), inner, hidden, true)?,
    })
}
