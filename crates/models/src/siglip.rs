//! SigLIP (Zhai et al. 2023, arXiv:2303.15343) and the models of one size of SigLIP 2: a tower over padded texts whose last
//! place is the vector, and a tower over patches that one learnt query gathers; each pair is judged by itself.

use crate::config::parse;
use crate::decoder::Heads;
use crate::dual::{Kind, scalar};
use crate::head::root;
use crate::mlp::Mlp;
use crate::tower::{Shape, Stack, Words, filled, mlp};
use crate::{Batch, Dual, Error, Image, Images, LayerHook, Limits, Result, TextTower, VisionTower};
use sconce_ops::{Attention, DType, LayerNorm, Linear, Pooling, Segments, Tensor, Weights, attention, embed, pool};
use serde::Deserialize;
use serde_json::{Value, json};

fn text_defaults() -> Value {
    json!({
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    })
}

fn vision_defaults() -> Value {
    json!({
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    })
}

/// Both towers, with scale and bias.
pub(crate) fn both(config: &Value, w: &Weights) -> Result<Dual> {
    let part = |name: &str| config.get(name).filter(|v| !v.is_null()).cloned().unwrap_or_else(|| json!({}));
    let text = Text::load(&part("text_config"), w)?;
    let vision = Vision::load(&part("vision_config"), w)?;
    let (dimension, other) = (text.dimension, vision.dimension);
    if dimension != other {
        return Err(Error::Config(format!(
            "texts have {dimension} numbers (projection_size), images {other} (hidden_size)"
        )));
    }
    Ok(Dual {
        text: Some(Box::new(text)),
        vision: Some(Box::new(vision)),
        logit_scale: scalar(w, "logit_scale")?.exp(),
        logit_bias: scalar(w, "logit_bias")?,
        ..alone(dimension)
    })
}

/// A tower for texts alone.
pub(crate) fn text(config: &Value, w: &Weights) -> Result<Dual> {
    let tower = Text::load(config, w)?;
    Ok(Dual { dimension: tower.dimension, text: Some(Box::new(tower)), ..alone(0) })
}

/// A tower for images alone.
pub(crate) fn vision(config: &Value, w: &Weights) -> Result<Dual> {
    let tower = Vision::load(config, w)?;
    Ok(Dual { dimension: tower.dimension, vision: Some(Box::new(tower)), ..alone(0) })
}

fn alone(dimension: usize) -> Dual {
    Dual { text: None, vision: None, dimension, logit_scale: 1.0, logit_bias: 0.0, kind: Kind::Sigmoid }
}

struct Text {
    words: Words,
    stack: Stack,
    heads: Heads,
    norm: LayerNorm,
    head: Linear,
    dimension: usize,
}

#[derive(Deserialize)]
struct Projection {
    projection_size: Option<usize>,
}

impl Text {
    fn load(config: &Value, w: &Weights) -> Result<Text> {
        let config = filled(config, text_defaults())?;
        let (shape, Projection { projection_size }): (Shape, _) = (parse(&config)?, parse(&config)?);
        let hidden = shape.hidden_size;
        let dimension = projection_size.unwrap_or(hidden);
        let w = root(w, "text_model", "embeddings.token_embedding.weight")?;
        Ok(Text {
            words: Words::load(&w.sub("embeddings"), &config, hidden)?,
            stack: Stack::load(&w.sub("encoder"), &shape)?,
            heads: shape.heads()?,
            norm: shape.norm(&w.sub("final_layer_norm"))?,
            // Vectors are f32 from the pooling on.
            head: Linear::load(&w.sub("head").of_head().in_dtype(DType::F32), hidden, dimension, true)?,
            dimension,
        })
    }
}

impl TextTower for Text {
    fn forward(&self, b: &Batch, watch: LayerHook<'_>) -> Result<Tensor> {
        let x = self.stack.forward(self.words.forward(b)?, &b.attention(self.heads.scale()), watch)?;
        let x = self.norm.forward(&x)?;
        watch(self.stack.len(), &x);
        let last = pool(&x, &b.segments, &vec![0; b.segments.count()], &[Pooling::LastToken])?;
        Ok(self.head.forward(&last)?)
    }

    fn limits(&self) -> Limits {
        self.words.limits()
    }

    fn padding(&self) -> Option<usize> {
        Some(self.words.limits().positions)
    }
}

struct Vision {
    patches: Linear,
    positions: Tensor,
    stack: Stack,
    heads: Heads,
    norm: LayerNorm,
    gather: Gather,
    image: Image,
    dimension: usize,
}

#[derive(Deserialize)]
struct Use {
    vision_use_head: Option<bool>,
}

impl Vision {
    fn load(config: &Value, w: &Weights) -> Result<Vision> {
        let config = filled(config, vision_defaults())?;
        let (shape, used): (Shape, Use) = (parse(&config)?, parse(&config)?);
        if used.vision_use_head == Some(false) {
            return Err(Error::Config(
                "vision_use_head false leaves no vector of an image; this is not supported".into(),
            ));
        }
        let image = Image::of(&config, false)?;
        let hidden = shape.hidden_size;
        let w = root(w, "vision_model", "embeddings.position_embedding.weight")?;
        let door = w.sub("embeddings.patch_embedding");
        let bias = door.tensor("bias", &[hidden])?;
        let positions = w.sub("embeddings.position_embedding");
        Ok(Vision {
            patches: Linear::shaped(&[(door, "weight")], &[hidden, 3, image.patch, image.patch])?.with_bias(bias)?,
            positions: positions.tensor("weight", &[image.tokens(), hidden])?,
            stack: Stack::load(&w.sub("encoder"), &shape)?,
            heads: shape.heads()?,
            norm: shape.norm(&w.sub("post_layernorm"))?,
            gather: Gather::load(&w.sub("head"), &shape)?,
            image,
            dimension: hidden,
        })
    }
}

impl VisionTower for Vision {
    fn forward(&self, images: &Images, watch: LayerHook<'_>) -> Result<Tensor> {
        let positions = embed(&[(&self.positions, &images.positions)])?;
        let x = self.patches.forward_residual(&images.patches, &positions)?;
        let x = self.stack.forward(x, &Attention::over(&images.segments, self.heads.scale()), watch)?;
        let x = self.norm.forward(&x)?;
        watch(self.stack.len(), &x);
        self.gather.forward(&x, images)
    }

    fn image(&self) -> Image {
        self.image
    }
}

/// h = Attn(probe, x, x); y = h + Mlp(norm(h)): one query an image, the same for all.
struct Gather {
    /// The projected probe, `[1, hidden]`: it does not depend on the image.
    probe: Tensor,
    qkv: Linear,
    output: Linear,
    heads: Heads,
    norm: LayerNorm,
    mlp: Mlp,
}

impl Gather {
    fn load(w: &Weights, shape: &Shape) -> Result<Gather> {
        let hidden = shape.hidden_size;
        let attn = w.sub("attention");
        // Query, key and value are one tensor in the file; the part that a call has no use for costs less than a copy here.
        let qkv = Linear::shaped(&[(attn.clone(), "in_proj_weight")], &[3 * hidden, hidden])?
            .with_bias(attn.tensor("in_proj_bias", &[3 * hidden])?)?;
        let probe = w.tensor("probe", &[1, 1, hidden])?.reshape(&[1, hidden])?;
        Ok(Gather {
            probe: qkv.forward(&probe)?.narrow(1, 0, hidden)?,
            qkv,
            output: Linear::load(&attn.sub("out_proj"), hidden, hidden, true)?,
            heads: shape.heads()?,
            norm: shape.norm(&w.sub("layernorm"))?,
            mlp: mlp(&w.sub("mlp"), shape)?,
        })
    }

    fn forward(&self, x: &Tensor, images: &Images) -> Result<Tensor> {
        let (tokens, count) = (images.segments.tokens(), images.segments.count());
        let Heads { count: heads, size, .. } = self.heads;
        let q = embed(&[(&self.probe, &images.zeros)])?.reshape(&[count, heads, size])?;
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, 3, heads, size])?;
        let (k, v) = (qkv.select(1, 1)?, qkv.select(1, 2)?); // [tokens, heads, size]
        let queries = Segments::new(&vec![1; count])?;
        let how = Attention { queries: queries.clone(), ..Attention::over(&images.segments, self.heads.scale()) };
        let h = self.output.forward(&attention(&q, &k, &v, &how)?.reshape(&[count, heads * size])?)?;
        let y = self.mlp.forward_residual(&self.norm.forward(&h)?, &h)?;
        // To f32, as every vector leaves.
        Ok(pool(&y, &queries, &vec![0; count], &[Pooling::Cls])?)
    }
}
