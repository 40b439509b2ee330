//! Texts and images in one space: two towers, and what turns the cosine of their vectors into a probability.

use crate::config::parse;
use crate::{Batch, Error, LayerHook, Limits, Result, clip, siglip};
use sconce_ops::{DType, Place, Segments, Tensor, Weights};
use serde::Deserialize;
use serde_json::Value;

/// Turns texts into vectors of the common space.
pub trait TextTower: Send {
    /// f32 `[sequences, dimension]`, not normalised. The last hidden state that `watch` sees is behind the final norm.
    fn forward(&self, batch: &Batch, watch: LayerHook<'_>) -> Result<Tensor>;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
    /// How long texts are padded to before they come here, where the model was trained on padded ones and looks at the
    /// padding. With what, the tokenizer's files say: those of SigLIP 2 pad with another id than its configuration assumes.
    fn padding(&self) -> Option<usize>;
}

/// Turns images into vectors of the common space.
pub trait VisionTower: Send {
    /// f32 `[images, dimension]`, not normalised. The last hidden state that `watch` sees is behind the final norm, where
    /// that is over all patches.
    fn forward(&self, images: &Images, watch: LayerHook<'_>) -> Result<Tensor>;
    /// The images that it takes.
    fn image(&self) -> Image;
}

/// Two towers, or one of them alone.
pub struct Dual {
    /// For texts.
    pub text: Option<Box<dyn TextTower>>,
    /// For images.
    pub vision: Option<Box<dyn VisionTower>>,
    /// Numbers in a vector.
    pub dimension: usize,
    /// What a cosine is multiplied with; one where there is a single tower.
    pub logit_scale: f32,
    /// What is added to that.
    pub logit_bias: f32,
    /// What makes probabilities of the logits.
    pub kind: Kind,
}

/// From logits to probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of an image's texts one fits: a softmax over them.
    Softmax,
    /// Each pair fits or does not: a sigmoid.
    Sigmoid,
}

/// Makes the towers that `config` describes.
pub fn dual(config: &Value, weights: &Weights) -> Result<Dual> {
    match config.get("model_type").and_then(Value::as_str) {
        Some("clip") => clip::both(config, weights),
        Some("clip_text_model") => clip::text(config, weights),
        Some("clip_vision_model") => clip::vision(config, weights),
        Some("siglip") => siglip::both(config, weights),
        Some("siglip_text_model") => siglip::text(config, weights),
        Some("siglip_vision_model") => siglip::vision(config, weights),
        Some("siglip2") => {
            let what =
                "SigLIP 2 for images of any size (siglip2) is not supported; its models of one size (siglip) are";
            Err(Error::Config(what.into()))
        }
        other => {
            let what = "has no towers for texts and images; clip, siglip and their single towers do";
            Err(Error::Config(format!("model_type `{}` {what}", other.unwrap_or_default())))
        }
    }
}

/// A number that the file keeps as a tensor of one element.
pub(crate) fn scalar(w: &Weights, name: &str) -> Result<f32> {
    let dims = w.dims(name)?.filter(|dims| dims.iter().all(|n| *n == 1)).unwrap_or_default();
    Ok(w.values(name, &dims)?[0])
}

/// The images that a tower takes: square, of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Pixels of a side.
    pub side: usize,
    /// Pixels of a patch's side. What is left of the image at its right and below is not looked at.
    pub patch: usize,
    /// Whether a token that stands for the whole image goes before the patches.
    pub class: bool,
}

#[derive(Deserialize)]
struct Sizes {
    image_size: usize,
    patch_size: usize,
    num_channels: usize,
}

impl Image {
    pub(crate) fn of(config: &Value, class: bool) -> Result<Image> {
        let Sizes { image_size: side, patch_size: patch, num_channels } = parse(config)?;
        let grid = side.checked_div(patch).unwrap_or(0);
        if num_channels != 3 || grid == 0 || side.checked_mul(side).and_then(|n| n.checked_mul(3)).is_none() {
            let what =
                format!("images of {side} pixels in patches of {patch}, {num_channels} colours; three are supported");
            return Err(Error::Config(what));
        }
        Ok(Image { side, patch, class })
    }

    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        let grid = self.side / self.patch;
        grid * grid + usize::from(self.class)
    }

    /// Numbers of a patch.
    fn width(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Cuts `pixels` `[3, side, side]` into patches behind those in `out`: one row a token, in the order of a convolution's
    /// weight `[.., 3, patch, patch]`. The token of the whole image is a row of zeros.
    pub fn cut(&self, pixels: &[f32], out: &mut Vec<f32>) -> Result<()> {
        let Image { side, patch, class } = *self;
        if pixels.len() != 3 * side * side {
            let what = format!("an image of {} numbers, not of 3 × {side} × {side}", pixels.len());
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

/// Images on their device, cut into patches.
#[derive(Clone, Debug)]
pub struct Images {
    /// `[images · tokens, 3 · patch²]`
    pub patches: Tensor,
    /// Each row's place in its image, `[images · tokens]`.
    pub positions: Tensor,
    /// A zero an image: for what all of them have once.
    pub zeros: Tensor,
    /// Where the images lie.
    pub segments: Segments,
}

impl Images {
    /// Cuts and uploads images `[3, side, side]`, in the tower's dtype.
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
    fn patches_follow_the_weight_of_a_convolution() {
        // Pixel (c, y, x) of a 5 × 5 image is 100·c + 10·y + x; the fifth row and column are left over.
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
    fn sizes_that_make_no_patches_are_refused() {
        let image = |side: u64, patch: u64, colours: u64| {
            let config = serde_json::json!({"image_size": side, "patch_size": patch, "num_channels": colours});
            Image::of(&config, false)
        };
        assert!(image(32, 8, 3).is_ok());
        assert!(image(32, 0, 3).is_err() && image(7, 8, 3).is_err() && image(32, 8, 1).is_err());
        assert!(image(u64::MAX, 1, 3).is_err());
    }
}
