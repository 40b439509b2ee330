//! SigLIP (Zhai et al. 2023, arXiv:2303.15343) and the fixed-resolution models of SigLIP 2: a text
//! tower over padded texts pooled at the last position, and a vision transformer with attention
//! pooling by one learned query. A sigmoid scores each pair independently.

use crate::config::parse;
use crate::decoder::Heads;
use crate::dual::{DualSizes, Kind, scalar};
use crate::head::root;
use crate::mlp::Mlp;
use crate::tower::{TextEmbeddings, TowerConfig, Transformer, mlp, text_limits, with_defaults};
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

/// The configuration of a tower, as the file has it.
fn section(config: &Value, name: &str) -> Value {
    config.get(name).filter(|v| !v.is_null()).cloned().unwrap_or_else(|| json!({}))
}

/// Refuses towers whose embeddings cannot be compared.
fn check_dimensions(text: usize, vision: usize) -> Result<()> {
    match text == vision {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "text embeddings have {text} dimensions (projection_size), image embeddings {vision} (hidden_size)"
        ))),
    }
}

/// The sizes of both towers.
pub(crate) fn sizes(config: &Value) -> Result<DualSizes> {
    let text = with_defaults(&section(config, "text_config"), text_defaults())?;
    let vision = with_defaults(&section(config, "vision_config"), vision_defaults())?;
    let hidden = |config: &Value| parse::<TowerConfig>(config).map(|c| c.hidden_size);
    let Projection { projection_size } = parse(&text)?;
    let dimension = projection_size.map_or_else(|| hidden(&text), Ok)?;
    check_dimensions(dimension, hidden(&vision)?)?;
    let limits = text_limits(&text)?;
    let image = Image::of(&vision, false)?;
    Ok(DualSizes { limits, padding: Some(limits.positions), image, dimension, kind: Kind::Sigmoid })
}

/// Both towers, and the scale and bias of the logits.
pub(crate) fn both(config: &Value, w: &Weights) -> Result<Dual> {
    let text = Text::load(&section(config, "text_config"), w)?;
    let vision = Vision::load(&section(config, "vision_config"), w)?;
    let dimension = text.dimension;
    check_dimensions(dimension, vision.dimension)?;
    Ok(Dual {
        text: Some(Box::new(text)),
        vision: Some(Box::new(vision)),
        logit_scale: scalar(w, "logit_scale")?.exp(),
        logit_bias: scalar(w, "logit_bias")?,
        ..no_towers(dimension)
    })
}

/// The text tower alone.
pub(crate) fn text(config: &Value, w: &Weights) -> Result<Dual> {
    let tower = Text::load(config, w)?;
    Ok(Dual { dimension: tower.dimension, text: Some(Box::new(tower)), ..no_towers(0) })
}

/// The vision tower alone.
pub(crate) fn vision(config: &Value, w: &Weights) -> Result<Dual> {
    let tower = Vision::load(config, w)?;
    Ok(Dual { dimension: tower.dimension, vision: Some(Box::new(tower)), ..no_towers(0) })
}

fn no_towers(dimension: usize) -> Dual {
    Dual { text: None, vision: None, dimension, logit_scale: 1.0, logit_bias: 0.0, kind: Kind::Sigmoid }
}

struct Text {
    embeddings: TextEmbeddings,
    transformer: Transformer,
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
        let config = with_defaults(config, text_defaults())?;
        let (c, Projection { projection_size }): (TowerConfig, _) = (parse(&config)?, parse(&config)?);
        let hidden = c.hidden_size;
        let dimension = projection_size.unwrap_or(hidden);
        let w = root(w, "text_model", "embeddings.token_embedding.weight")?;
        Ok(Text {
            embeddings: TextEmbeddings::load(&w.sub("embeddings"), &config, hidden)?,
            transformer: Transformer::load(&w.sub("encoder"), &c)?,
            heads: c.heads()?,
            norm: c.norm(&w.sub("final_layer_norm"))?,
            // The head is in f32 because pooling returns f32.
            head: Linear::load(&w.sub("head").of_head().in_dtype(DType::F32), hidden, dimension, true)?,
            dimension,
        })
    }
}

impl TextTower for Text {
    fn forward(&self, b: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let x = self.transformer.forward(self.embeddings.forward(b)?, &b.attention(self.heads.scale()), hook)?;
        let x = self.norm.forward(&x)?;
        hook(self.transformer.len(), &x);
        let last = pool(&x, &b.segments, &vec![0; b.segments.count()], &[Pooling::LastToken])?;
        Ok(self.head.forward(&last)?)
    }

    fn limits(&self) -> Limits {
        self.embeddings.limits()
    }

    fn padding(&self) -> Option<usize> {
        Some(self.embeddings.limits().positions)
    }
}

struct Vision {
    patches: Linear,
    positions: Tensor,
    transformer: Transformer,
    heads: Heads,
    norm: LayerNorm,
    pooling_head: AttentionPooling,
    image: Image,
    dimension: usize,
}

#[derive(Deserialize)]
struct HeadConfig {
    vision_use_head: Option<bool>,
}

impl Vision {
    fn load(config: &Value, w: &Weights) -> Result<Vision> {
        let config = with_defaults(config, vision_defaults())?;
        let (c, head): (TowerConfig, HeadConfig) = (parse(&config)?, parse(&config)?);
        if head.vision_use_head == Some(false) {
            return Err(Error::Config("vision_use_head false gives no image embedding and is not supported".into()));
        }
        let image = Image::of(&config, false)?;
        let hidden = c.hidden_size;
        let w = root(w, "vision_model", "embeddings.position_embedding.weight")?;
        let patch_embedding = w.sub("embeddings.patch_embedding");
        let bias = patch_embedding.tensor("bias", &[hidden])?;
        let positions = w.sub("embeddings.position_embedding");
        Ok(Vision {
            patches: Linear::shaped(&[(patch_embedding, "weight")], &[hidden, 3, image.patch, image.patch])?
                .with_bias(bias)?,
            positions: positions.tensor("weight", &[image.tokens(), hidden])?,
            transformer: Transformer::load(&w.sub("encoder"), &c)?,
            heads: c.heads()?,
            norm: c.norm(&w.sub("post_layernorm"))?,
            pooling_head: AttentionPooling::load(&w.sub("head"), &c)?,
            image,
            dimension: hidden,
        })
    }
}

impl VisionTower for Vision {
    fn forward(&self, images: &Images, hook: LayerHook<'_>) -> Result<Tensor> {
        let positions = embed(&[(&self.positions, &images.positions)])?;
        let x = self.patches.forward_residual(&images.patches, &positions)?;
        let x = self.transformer.forward(x, &Attention::full(&images.segments, self.heads.scale()), hook)?;
        let x = self.norm.forward(&x)?;
        hook(self.transformer.len(), &x);
        self.pooling_head.forward(&x, images)
    }

    fn image(&self) -> Image {
        self.image
    }
}

/// Attention pooling (SigLIP's MAP head): h = Attn(probe, x, x); y = h + Mlp(norm(h)). The probe is
/// one learned query, the same for all images.
struct AttentionPooling {
    /// The query projection of the probe, `[1, hidden]`: it does not depend on the image.
    probe: Tensor,
    qkv: Linear,
    output: Linear,
    heads: Heads,
    norm: LayerNorm,
    mlp: Mlp,
}

impl AttentionPooling {
    fn load(w: &Weights, c: &TowerConfig) -> Result<AttentionPooling> {
        let hidden = c.hidden_size;
        let attn = w.sub("attention");
        // The file has one tensor for Q, K and V. Computing the unused Q costs less than a copy of
        // the K and V rows.
        let qkv = Linear::shaped(&[(attn.clone(), "in_proj_weight")], &[3 * hidden, hidden])?
            .with_bias(attn.tensor("in_proj_bias", &[3 * hidden])?)?;
        let probe = w.tensor("probe", &[1, 1, hidden])?.reshape(&[1, hidden])?;
        Ok(AttentionPooling {
            probe: qkv.forward(&probe)?.narrow(1, 0, hidden)?,
            qkv,
            output: Linear::load(&attn.sub("out_proj"), hidden, hidden, true)?,
            heads: c.heads()?,
            norm: c.norm(&w.sub("layernorm"))?,
            mlp: mlp(&w.sub("mlp"), c)?,
        })
    }

    fn forward(&self, x: &Tensor, images: &Images) -> Result<Tensor> {
        let (tokens, count) = (images.segments.tokens(), images.segments.count());
        let Heads { count: heads, size, .. } = self.heads;
        let q = embed(&[(&self.probe, &images.zeros)])?.reshape(&[count, heads, size])?;
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, 3, heads, size])?;
        let (k, v) = (qkv.select(1, 1)?, qkv.select(1, 2)?); // [tokens, heads, size]
        let queries = Segments::new(&vec![1; count])?;
        let params = Attention { queries: queries.clone(), ..Attention::full(&images.segments, self.heads.scale()) };
        let h = self.output.forward(&attention(&q, &k, &v, &params)?.reshape(&[count, heads * size])?)?;
        let y = self.mlp.forward_residual(&self.norm.forward(&h)?, &h)?;
        // Pooling a single row converts it to f32.
        Ok(pool(&y, &queries, &vec![0; count], &[Pooling::Cls])?)
    }
}
