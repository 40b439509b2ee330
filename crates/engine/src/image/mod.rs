//! From an image file to a vision model's input: decode, rotate upright, resize, crop, normalize.
//!
//! The reference is Pillow with transformers' PIL image processors, because CLIP and SigLIP were
//! trained with them: `load_image` (EXIF orientation, then `convert("RGB")`), then the processor
//! that the model's files describe.

mod decode;
mod gif;
mod jpeg;
mod orientation;
mod png;
mod processor;
mod resize;

use crate::error::{Error, Result};
use decode::decode;
pub(crate) use processor::Processor;

/// The most pixels of an image: 134 million, above any common camera and below Pillow's own limit
/// of 179 million. Decoding takes up to some 13 bytes per pixel at its peak (a progressive CMYK
/// JPEG), so 1.7 GiB at this limit.
pub(crate) const MOST_PIXELS: u64 = 1 << 27;
/// The longest side, which is JPEG's own limit. It bounds the tables of a resize.
pub(crate) const LONGEST_SIDE: u64 = 65_535;
/// The most bytes of an image file.
pub(crate) const MOST_BYTES: usize = 256 << 20;

/// A decoded image, upright, 8 bits per channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>, // [height, width, 3]
}

impl Image {
    /// Decodes a PNG, JPEG, GIF, WebP, BMP or TIFF file, detected by its content. Of an animation,
    /// the first frame.
    pub fn decode(bytes: &[u8]) -> Result<Image> {
        decode(bytes).map_err(|what| Error::Input(format!("the image cannot be used: {what}")))
    }

    /// An image of `width` × `height` pixels from its rows of red, green and blue bytes.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Image, String> {
        check_size(width as u64, height as u64)?;
        if rgb.len() != width * height * 3 {
            return Err(format!("{width}x{height} pixels are {} bytes, not {}", width * height * 3, rgb.len()));
        }
        Ok(Image { width, height, rgb })
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Red, green and blue of every pixel, row by row.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({}x{})", self.width, self.height)
    }
}

/// Refuses a size from a header before memory is allocated for it.
fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width == 0 || height == 0 {
        return Err(format!("it has no pixels: {width}x{height}"));
    }
    if width > LONGEST_SIDE || height > LONGEST_SIDE || width * height > MOST_PIXELS {
        return Err(format!(
            "it is {width}x{height} pixels; the limit is {MOST_PIXELS} pixels and {LONGEST_SIDE} per side: scale it down"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
