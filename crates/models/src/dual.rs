//! Two-tower models (CLIP, SigLIP): text and image embeddings in one space, and the function that
//! turns their cosine similarity into a probability.

use crate::config::parse;
use crate::{Batch, Error, LayerHook, Limits, Result, clip, siglip};
use sconce_ops::{DType, Place, Segments, Tensor, Weights};
use serde::Deserialize;
use serde_json::Value;

/// Maps texts to embeddings in the common space.
pub trait TextTower: Send {
    /// Embeddings `[sequences, dimension]` in f32, not L2-normalized. `hook` receives the last
    /// hidden state after the final norm.
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor>;
    /// The number of token ids and positions that the tower has embeddings for.
    fn limits(&self) -> Limits;
    /// The length that the caller must pad texts to, if the model was trained on padded texts and
    /// attends to the padding. The tokenizer's files name the padding id: SigLIP 2 pads with
    /// another id than its configuration says.
    fn padding(&self) -> Option<usize>;
}

/// Maps images to embeddings in the common space.
pub trait VisionTower: Send {
    /// Embeddings `[images, dimension]` in f32, not L2-normalized. `hook` receives the last hidden
    /// state after the final norm if that norm covers all patches.
    fn forward(&self, images: &Images, hook: LayerHook<'_>) -> Result<Tensor>;
    /// The image size that the tower takes.
    fn image(&self) -> Image;
}

/// A text tower and a vision tower, or one of them alone.
pub struct Dual {
    /// The text tower.
    pub text: Option<Box<dyn TextTower>>,
    /// The vision tower.
    pub vision: Option<Box<dyn VisionTower>>,
    /// The size of an embedding.
    pub dimension: usize,
    /// The factor of the cosine similarity; 1 for a single tower.
    pub logit_scale: f32,
    /// Added to the scaled cosine similarity.
    pub logit_bias: f32,
    /// How logits become probabilities.
    pub kind: Kind,
}

/// How logits become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Softmax over the texts of an image: exactly one text matches.
    Softmax,
    /// Sigmoid of each pair: pairs match independently.
    Sigmoid,
}

/// The sizes of a text tower and a vision tower, from the configuration alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualSizes {
    /// The number of token ids and positions of the text tower.
    pub limits: Limits,
    /// See [`TextTower::padding`].
    pub padding: Option<usize>,
    /// The image size that the vision tower takes.
    pub image: Image,
    /// The size of an embedding.
    pub dimension: usize,
    /// How logits become probabilities.
    pub kind: Kind,
}

/// The functions that build towers, by `model_type`.
const TOWERS: &[(&str, LoadDual)] = &[
    ("clip", clip::both),
    ("clip_text_model", clip::text),
    ("clip_vision_model", clip::vision),
    ("siglip", siglip::both),
    ("siglip_text_model", siglip::text),
    ("siglip_vision_model", siglip::vision),
];
type LoadDual = fn(&Value, &Weights) -> Result<Dual>;

/// The sizes that `config` describes, for towers whose weights another engine has.
pub fn dual_sizes(config: &Value) -> Result<DualSizes> {
    match config.get("model_type").and_then(Value::as_str).unwrap_or_default() {
        "clip" => clip::sizes(config),
        "siglip" => siglip::sizes(config),
        kind => Err(Error::Config(format!("model_type `{kind}` does not have two towers; supported: clip, siglip"))),
    }
}

/// Builds the towers that `config` describes.
pub fn dual(config: &Value, weights: &Weights) -> Result<Dual> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match TOWERS.iter().find(|(name, _)| *name == kind) {
        Some((_, load)) => load(config, weights),
        None if kind == "siglip2" => {
            let what = "SigLIP 2 with variable image sizes (siglip2, NaFlex) is not supported; its fixed-resolution models (siglip) are";
            Err(Error::Config(what.into()))
        }
        None => {
            let what = "has no text and image towers; supported: clip, siglip and their single towers";
            Err(Error::Config(format!("model_type `{kind}` {what}")))
        }
    }
}

/// Whether a `model_type` has towers for texts and images, or one of them.
pub(crate) fn is_dual(kind: &str) -> bool {
    TOWERS.iter().any(|(name, _)| *name == kind)
}

/// Every `model_type` in the table.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> {
    TOWERS.iter().map(|(name, _)| *name)
}

/// Reads a number that the file stores as a tensor of one element.
pub(crate) fn scalar(w: &Weights, name: &str) -> Result<f32> {
    let dims = w.dims(name)?.filter(|dims| dims.iter().all(|n| *n == 1)).unwrap_or_default();
    Ok(w.values(name, &dims)?[0])
}

/// The image size and patches of a vision tower. Images are square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Width and height of the image, in pixels.
    pub side: usize,
    /// Width and height of a patch, in pixels. Pixels at the right and bottom that do not fill a
    /// patch are ignored.
    pub patch: usize,
    /// Whether a class token precedes the patches.
    pub class: bool,
}

#[derive(Deserialize)]
struct ImageConfig {
    image_size: usize,
    patch_size: usize,
    num_channels: usize,
}

impl Image {
    pub(crate) fn of(config: &Value, class: bool) -> Result<Image> {
        let ImageConfig { image_size: side, patch_size: patch, num_channels } = parse(config)?;
        let grid = side.checked_div(patch).unwrap_or(0);
        if num_channels != 3 || grid == 0 || side.checked_mul(side).and_then(|n| n.checked_mul(3)).is_none() {
            let what = format!(
                "image_size {side}, patch_size {patch}, num_channels {num_channels} is not supported; num_channels must be 3 and an image hold a patch"
            );
            return Err(Error::Config(what));
        }
        Ok(Image { side, patch, class })
    }

    /// Tokens per image.
    pub fn tokens(&self) -> usize {
        let grid = self.side / self.patch;
        grid * grid + usize::from(self.class)
    }

    /// Values per patch.
    fn width(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Cuts `pixels` `[3, side, side]` into patches and appends them to `out`: one row per token,
    /// in the order of a convolution's weight `[.., 3, patch, patch]`. The class token's row is
    /// zeros.
    pub fn cut(&self, pixels: &[f32], out: &mut Vec<f32>) -> Result<()> {
        let Image { side, patch, class } = *self;
        if pixels.len() != 3 * side * side {
            let what = format!("an image of {} values; the model needs 3 × {side} × {side}", pixels.len());
            return Err(Error::Input(what));
        }
        let grid = side / patch;
        out.extend(std::iter::repeat_n(0.0, if class { self.width() } else { 0 }));
        for (y, x) in (0..grid).flat_map(|y| (0..grid).map(move |x| (y * patch, x * patch))) {
            for row in (0..3).flat_map(|colour| (0..patch).map(move |row| colour * side + y + row)) {
                out.extend_from_slice(&pixels[row * side + x..][..patch]);
            }
        }
        Ok(())
    }
}

/// A batch of images, cut into patches and uploaded.
#[derive(Clone, Debug)]
pub struct Images {
    /// `[images · tokens, 3 · patch²]`
    pub patches: Tensor,
    /// Position ids of the rows, `[images · tokens]`.
    pub positions: Tensor,
    /// A zero per image, to look up a parameter that all images share.
    pub zeros: Tensor,
    /// The token range of each image.
    pub segments: Segments,
}

impl Images {
    /// Cuts images `[3, side, side]` into patches and uploads them in the tower's dtype.
    pub fn new(images: &[&[f32]], image: Image, dtype: DType, place: &Place) -> Result<Images> {
        let tokens = image.tokens();
        let mut patches = Vec::with_capacity(images.len() * tokens * image.width());
        for pixels in images {
            image.cut(pixels, &mut patches)?;
        }
        let positions: Vec<u32> = images.iter().flat_map(|_| 0..tokens as u32).collect();
        Ok(Images {
            patches: Tensor::from_f32(&patches, &[positions.len(), image.width()], dtype, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            zeros: Tensor::from_u32(&vec![0; images.len()], place)?,
            segments: Segments::new(&vec![tokens; images.len()])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_in_convolution_weight_order() {
        // Pixel (c, y, x) of a 5 × 5 image is 100·c + 10·y + x; the fifth row and column do not
        // fill a patch.
        let pixels: Vec<f32> = (0..75).map(|i| (i / 25 * 100 + i / 5 % 5 * 10 + i % 5) as f32).collect();
        let mut out = Vec::new();
        Image { side: 5, patch: 2, class: true }.cut(&pixels, &mut out).unwrap();
        assert_eq!(out.len(), 5 * 12);
        assert_eq!(out[..12], [0.0; 12]);
        assert_eq!(out[12..24], [0., 1., 10., 11., 100., 101., 110., 111., 200., 201., 210., 211.]);
        assert_eq!(out[24..28], [2., 3., 12., 13.]);
        assert_eq!(out[36..40], [20., 21., 30., 31.]);
        assert!(Image { side: 4, patch: 2, class: false }.cut(&pixels, &mut out).is_err());
    }

    #[test]
    fn invalid_image_and_patch_sizes_are_refused() {
        let image = |side: u64, patch: u64, colours: u64| {
            let config = serde_json::json!({"image_size": side, "patch_size": patch, "num_channels": colours});
            Image::of(&config, false)
        };
        assert!(image(32, 8, 3).is_ok());
        assert!(image(32, 0, 3).is_err() && image(7, 8, 3).is_err() && image(32, 8, 1).is_err());
        assert!(image(u64::MAX, 1, 3).is_err());
    }
}
