//! CLIP (Radford et al. 2021, arXiv:2103.00020): a causal tower over texts whose end token is the vector, and a tower over
//! patches whose class token is; each projected into the common space.

use crate::config::parse;
use crate::decoder::Heads;
use crate::dual::{Kind, scalar};
use crate::head::root;
use crate::tower::{Shape, Stack, Words, filled};
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

/// Both towers, with the cosine's scale.
pub(crate) fn both(config: &Value, w: &Weights) -> Result<Dual> {
    let part = |name: &str, old: &str| {
        // The oldest files repeat a tower under another name, and transformers believes that one.
        let own = config.get(old).filter(|v| v.is_object()).or_else(|| config.get(name));
        own.filter(|v| !v.is_null()).cloned().unwrap_or_else(|| json!({}))
    };
    let dimension = match config.get("projection_dim") {
        None => 512,
        Some(n) => n.as_u64().ok_or_else(|| Error::Config("projection_dim is not a size".into()))? as usize,
    };
    let (text, vision) = (part("text_config", "text_config_dict"), part("vision_config", "vision_config_dict"));
    Ok(Dual {
        text: Some(Box::new(Text::load(&filled(&text, text_defaults())?, w, Some(dimension))?)),
        vision: Some(Box::new(Vision::load(&filled(&vision, vision_defaults())?, w, Some(dimension))?)),
        logit_scale: scalar(w, "logit_scale")?.exp(),
        ..alone(dimension)
    })
}

/// A tower for texts alone.
pub(crate) fn text(config: &Value, w: &Weights) -> Result<Dual> {
    let config = filled(config, text_defaults())?;
    let tower = Text::load(&config, w, projection(&config, w, "text_projection.weight")?)?;
    Ok(Dual { dimension: tower.dimension, text: Some(Box::new(tower)), ..alone(0) })
}

/// A tower for images alone.
pub(crate) fn vision(config: &Value, w: &Weights) -> Result<Dual> {
    let config = filled(config, vision_defaults())?;
    let tower = Vision::load(&config, w, projection(&config, w, "visual_projection.weight")?)?;
    Ok(Dual { dimension: tower.dimension, vision: Some(Box::new(tower)), ..alone(0) })
}

fn alone(dimension: usize) -> Dual {
    Dual { text: None, vision: None, dimension, logit_scale: 1.0, logit_bias: 0.0, kind: Kind::Softmax }
}

#[derive(Deserialize)]
struct Projection {
    projection_dim: usize,
}

/// What a single tower projects to: the class says whether it does, and where there is none the file.
fn projection(config: &Value, w: &Weights, name: &str) -> Result<Option<usize>> {
    let projected = match config.pointer("/architectures/0").and_then(Value::as_str) {
        Some("CLIPTextModel" | "CLIPVisionModel") => false,
        Some(class) if class.ends_with("WithProjection") => true,
        _ => w.has(name)?,
    };
    Ok(if projected { Some(parse::<Projection>(config)?.projection_dim) } else { None })
}

/// Vectors are f32 from the pooling on.
fn project(w: &Weights, hidden: usize, dimension: Option<usize>) -> Result<Option<Linear>> {
    Ok(dimension.map(|n| Linear::load(&w.of_head().in_dtype(DType::F32), hidden, n, false)).transpose()?)
}

struct Text {
    words: Words,
    stack: Stack,
    heads: Heads,
    norm: LayerNorm,
    project: Option<Linear>,
    end: u32,
    dimension: usize,
}

#[derive(Deserialize)]
struct End {
    eos_token_id: u32,
}

impl Text {
    fn load(config: &Value, w: &Weights, dimension: Option<usize>) -> Result<Text> {
        let (shape, end): (Shape, End) = (parse(config)?, parse(config)?);
        let project = project(&w.sub("text_projection"), shape.hidden_size, dimension)?;
        let w = root(w, "text_model", "embeddings.token_embedding.weight")?;
        Ok(Text {
            words: Words::load(&w.sub("embeddings"), config, shape.hidden_size)?,
            stack: Stack::load(&w.sub("encoder"), &shape)?,
            heads: shape.heads()?,
            norm: shape.norm(&w.sub("final_layer_norm"))?,
            project,
            end: end.eos_token_id,
            dimension: dimension.unwrap_or(shape.hidden_size),
        })
    }

    /// How many tokens of a text there are up to its end.
    fn length(&self, ids: &[u32]) -> usize {
        // Configurations of the first years say 2, which no text ends with; the end was then the highest id of the vocabulary.
        let end = if self.end == 2 { ids.iter().max() } else { Some(&self.end) };
        ids.iter().position(|id| Some(id) == end).unwrap_or(0) + 1
    }
}

impl TextTower for Text {
    fn forward(&self, b: &Batch, watch: LayerHook<'_>) -> Result<Tensor> {
        let how = Attention { sees: Mask::Causal, ..b.attention(self.heads.scale()) };
        let x = self.stack.forward(self.words.forward(b)?, &how, watch)?;
        let x = self.norm.forward(&x)?;
        watch(self.stack.len(), &x);
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
        self.words.limits()
    }

    fn padding(&self) -> Option<usize> {
        None
    }
}

struct Vision {
    patches: Linear,
    /// The first row is the class token, with its position.
    positions: Tensor,
    norm: LayerNorm,
    stack: Stack,
    heads: Heads,
    class_norm: LayerNorm,
    project: Option<Linear>,
    image: Image,
    dimension: usize,
}

impl Vision {
    fn load(config: &Value, w: &Weights, dimension: Option<usize>) -> Result<Vision> {
        let (shape, image): (Shape, Image) = (parse(config)?, Image::of(config, true)?);
        let hidden = shape.hidden_size;
        let project = project(&w.sub("visual_projection"), hidden, dimension)?;
        let w = root(w, "vision_model", "embeddings.class_embedding")?;
        let door = w.sub("embeddings");
        let mut positions = door.sub("position_embedding").values("weight", &[image.tokens(), hidden])?;
        let class = door.values("class_embedding", &[hidden])?;
        positions.iter_mut().zip(&class).for_each(|(p, c)| *p += c);
        Ok(Vision {
            patches: Linear::shaped(
                &[(door.sub("patch_embedding"), "weight")],
                &[hidden, 3, image.patch, image.patch],
            )?,
            positions: door.put(&positions, &[image.tokens(), hidden])?,
            norm: shape.norm(&w.sub("pre_layrnorm"))?,
            stack: Stack::load(&w.sub("encoder"), &shape)?,
            heads: shape.heads()?,
            class_norm: shape.norm(&w.sub("post_layernorm").in_dtype(DType::F32))?,
            project,
            image,
            dimension: dimension.unwrap_or(hidden),
        })
    }
}

impl VisionTower for Vision {
    fn forward(&self, images: &Images, watch: LayerHook<'_>) -> Result<Tensor> {
        // The class token's patch is zeros, and so is its product.
        let positions = embed(&[(&self.positions, &images.positions)])?;
        let x = self.norm.forward(&self.patches.forward_residual(&images.patches, &positions)?)?;
        let x = self.stack.forward(x, &Attention::over(&images.segments, self.heads.scale()), watch)?;
        watch(self.stack.len(), &x);
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
