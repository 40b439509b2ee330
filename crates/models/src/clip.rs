//! CLIP (Radford et al. 2021, arXiv:2103.00020): a causal text tower pooled at the end-of-text
//! token, and a vision transformer over image patches pooled at the class token. Both are projected
//! into the common embedding space.

use crate::config::parse;
use crate::decoder::Heads;
use crate::dual::{DualSizes, Kind, scalar};
use crate::head::root;
use crate::tower::{TextEmbeddings, TowerConfig, Transformer, text_limits, with_defaults};
use crate::{Batch, Dual, Error, Image, Images, LayerHook, Limits, Result, TextTower, VisionTower};
use sconce_ops::{Attention, DType, LayerNorm, Linear, Mask, Pooling, Tensor, Weights, embed, pool};
use serde::Deserialize;
use serde_json::{Value, json};

fn text_defaults() -> Value {
    json!({
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "projection_dim": 512, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
    })
}

fn vision_defaults() -> Value {
    json!({
        "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 512, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    })
}

/// The configuration of both towers, and the size of an embedding.
struct Sections {
    text: Value,
    vision: Value,
    dimension: usize,
}

impl Sections {
    fn of(config: &Value) -> Result<Sections> {
        let part = |name: &str, old: &str| {
            // The oldest files repeat a tower's configuration as `*_config_dict`, and transformers
            // gives that one precedence.
            let section = config.get(old).filter(|v| v.is_object()).or_else(|| config.get(name));
            section.filter(|v| !v.is_null()).cloned().unwrap_or_else(|| json!({}))
        };
        let dimension = match config.get("projection_dim") {
            None => 512,
            Some(n) => n.as_u64().ok_or_else(|| Error::Config("projection_dim is not an integer".into()))? as usize,
        };
        Ok(Sections {
            text: with_defaults(&part("text_config", "text_config_dict"), text_defaults())?,
            vision: with_defaults(&part("vision_config", "vision_config_dict"), vision_defaults())?,
            dimension,
        })
    }
}

/// Both towers and the scale of the cosine similarity.
pub(crate) fn both(config: &Value, w: &Weights) -> Result<Dual> {
    let Sections { text, vision, dimension } = Sections::of(config)?;
    Ok(Dual {
        text: Some(Box::new(Text::load(&text, w, Some(dimension))?)),
        vision: Some(Box::new(Vision::load(&vision, w, Some(dimension))?)),
        logit_scale: scalar(w, "logit_scale")?.exp(),
        ..no_towers(dimension)
    })
}

/// The sizes of both towers.
pub(crate) fn sizes(config: &Value) -> Result<DualSizes> {
    let Sections { text, vision, dimension } = Sections::of(config)?;
    let image = Image::of(&vision, true)?;
    Ok(DualSizes { limits: text_limits(&text)?, padding: None, image, dimension, kind: Kind::Softmax })
}

/// The text tower alone.
pub(crate) fn text(config: &Value, w: &Weights) -> Result<Dual> {
    let config = with_defaults(config, text_defaults())?;
    let tower = Text::load(&config, w, projection(&config, w, "text_projection.weight")?)?;
    Ok(Dual { dimension: tower.dimension, text: Some(Box::new(tower)), ..no_towers(0) })
}

/// The vision tower alone.
pub(crate) fn vision(config: &Value, w: &Weights) -> Result<Dual> {
    let config = with_defaults(config, vision_defaults())?;
    let tower = Vision::load(&config, w, projection(&config, w, "visual_projection.weight")?)?;
    Ok(Dual { dimension: tower.dimension, vision: Some(Box::new(tower)), ..no_towers(0) })
}

fn no_towers(dimension: usize) -> Dual {
    Dual { text: None, vision: None, dimension, logit_scale: 1.0, logit_bias: 0.0, kind: Kind::Softmax }
}

#[derive(Deserialize)]
struct Projection {
    projection_dim: usize,
}

/// The size that a single tower projects to. The class in `architectures` says whether it projects;
/// without a class, the presence of the tensor does.
fn projection(config: &Value, w: &Weights, name: &str) -> Result<Option<usize>> {
    let projected = match config.pointer("/architectures/0").and_then(Value::as_str) {
        Some("CLIPTextModel" | "CLIPVisionModel") => false,
        Some(class) if class.ends_with("WithProjection") => true,
        _ => w.has(name)?,
    };
    Ok(if projected { Some(parse::<Projection>(config)?.projection_dim) } else { None })
}

/// The projection is in f32 because pooling returns f32.
fn project(w: &Weights, hidden: usize, dimension: Option<usize>) -> Result<Option<Linear>> {
    Ok(dimension.map(|n| Linear::load(&w.of_head().in_dtype(DType::F32), hidden, n, false)).transpose()?)
}

struct Text {
    embeddings: TextEmbeddings,
    transformer: Transformer,
    heads: Heads,
    norm: LayerNorm,
    project: Option<Linear>,
    eos: u32,
    dimension: usize,
}

#[derive(Deserialize)]
struct EosToken {
    eos_token_id: u32,
}

impl Text {
    fn load(config: &Value, w: &Weights, dimension: Option<usize>) -> Result<Text> {
        let (c, eos): (TowerConfig, EosToken) = (parse(config)?, parse(config)?);
        let project = project(&w.sub("text_projection"), c.hidden_size, dimension)?;
        let w = root(w, "text_model", "embeddings.token_embedding.weight")?;
        Ok(Text {
            embeddings: TextEmbeddings::load(&w.sub("embeddings"), config, c.hidden_size)?,
            transformer: Transformer::load(&w.sub("encoder"), &c)?,
            heads: c.heads()?,
            norm: c.norm(&w.sub("final_layer_norm"))?,
            project,
            eos: eos.eos_token_id,
            dimension: dimension.unwrap_or(c.hidden_size),
        })
    }

    /// The number of tokens up to and including the end-of-text token.
    fn length(&self, ids: &[u32]) -> usize {
        // Configurations of the first years have the wrong `eos_token_id` 2. For these, the
        // end-of-text token is the highest id of the text.
        let eos = if self.eos == 2 { ids.iter().max() } else { Some(&self.eos) };
        ids.iter().position(|id| Some(id) == eos).unwrap_or(0) + 1
    }
}

impl TextTower for Text {
    fn forward(&self, b: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let params = Attention { mask: Mask::Causal, ..b.attention(self.heads.scale()) };
        let x = self.transformer.forward(self.embeddings.forward(b)?, &params, hook)?;
        let x = self.norm.forward(&x)?;
        hook(self.transformer.len(), &x);
        let ids = b.observe_ids();
        let lengths: Vec<usize> = b.segments.observe().iter().map(|range| self.length(&ids[range])).collect();
        let texts = b.segments.heads(&lengths)?;
        let y = pool(&x, &texts, &vec![0; lengths.len()], &[Pooling::LastToken])?;
        Ok(match &self.project {
            Some(project) => project.forward(&y)?,
            None => y,
        })
    }

    fn limits(&self) -> Limits {
        self.embeddings.limits()
    }

    fn padding(&self) -> Option<usize> {
        None
    }
}

struct Vision {
    patches: Linear,
    /// Position embeddings; the class embedding is added to the first row.
    positions: Tensor,
    norm: LayerNorm,
    transformer: Transformer,
    heads: Heads,
    class_norm: LayerNorm,
    project: Option<Linear>,
    image: Image,
    dimension: usize,
}

impl Vision {
    fn load(config: &Value, w: &Weights, dimension: Option<usize>) -> Result<Vision> {
        let (c, image): (TowerConfig, Image) = (parse(config)?, Image::of(config, true)?);
        let hidden = c.hidden_size;
        let project = project(&w.sub("visual_projection"), hidden, dimension)?;
        let w = root(w, "vision_model", "embeddings.class_embedding")?;
        let embeddings = w.sub("embeddings");
        let mut positions = embeddings.sub("position_embedding").values("weight", &[image.tokens(), hidden])?;
        let class = embeddings.values("class_embedding", &[hidden])?;
        positions.iter_mut().zip(&class).for_each(|(p, c)| *p += c);
        Ok(Vision {
            patches: Linear::shaped(
                &[(embeddings.sub("patch_embedding"), "weight")],
                &[hidden, 3, image.patch, image.patch],
            )?,
            positions: embeddings.put(&positions, &[image.tokens(), hidden])?,
            norm: c.norm(&w.sub("pre_layrnorm"))?,
            transformer: Transformer::load(&w.sub("encoder"), &c)?,
            heads: c.heads()?,
            class_norm: c.norm(&w.sub("post_layernorm").in_dtype(DType::F32))?,
            project,
            image,
            dimension: dimension.unwrap_or(hidden),
        })
    }
}

impl VisionTower for Vision {
    fn forward(&self, images: &Images, hook: LayerHook<'_>) -> Result<Tensor> {
        // The class token's patch is all zeros, so its product adds nothing to its embedding.
        let positions = embed(&[(&self.positions, &images.positions)])?;
        let x = self.norm.forward(&self.patches.forward_residual(&images.patches, &positions)?)?;
        let x = self.transformer.forward(x, &Attention::full(&images.segments, self.heads.scale()), hook)?;
        hook(self.transformer.len(), &x);
        let class = pool(&x, &images.segments, &vec![0; images.segments.count()], &[Pooling::Cls])?;
        let y = self.class_norm.forward(&class)?;
        Ok(match &self.project {
            Some(project) => project.forward(&y)?,
            None => y,
        })
    }

    fn image(&self) -> Image {
        self.image
    }
}
