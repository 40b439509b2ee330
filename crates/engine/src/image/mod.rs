//! From the bytes of a picture to what a vision model reads: decode, turn upright, resize, crop, normalise.
//!
//! The reference is Pillow under transformers' PIL image processors, because that is what CLIP and SigLIP were trained
//! behind: `load_image` (EXIF orientation, then `convert("RGB")`), then the processor that the model's files describe.

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

/// The most pixels of a picture: 134 million, above any common camera and below Pillow's own limit of 179 million.
/// Decoding holds up to some 13 bytes a pixel at its peak (a progressive CMYK JPEG), so 1.7 GiB at this limit.
pub(crate) const MOST_PIXELS: u64 = 1 << 27;
/// The longest side, which is JPEG's own. It bounds the tables of a resize.
pub(crate) const LONGEST_SIDE: u64 = 65_535;
/// The most bytes of a picture's file.
pub(crate) const MOST_BYTES: usize = 256 << 20;

/// A decoded picture, upright, 8 bits a channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>, // [height, width, 3]
}

impl Image {
    /// Reads a picture: PNG, JPEG, GIF, WebP, BMP or TIFF, told by its content. Of moving ones the first.
    pub fn decode(bytes: &[u8]) -> Result<Image> {
        decode(bytes).map_err(|what| Error::Input(format!("the image cannot be used: {what}")))
    }

    /// A picture of `width` × `height` pixels from its rows of red, green and blue bytes.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Image, String> {
        check_size(width as u64, height as u64)?;
        if rgb.len() != width * height * 3 {
            return Err(format!("{width}x{height} pixels are {} bytes, not {}", width * height * 3, rgb.len()));
        }
        Ok(Image { width, height, rgb })
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
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

/// Refuses a size from a header, before anything is allocated for it.
fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width == 0 || height == 0 {
        return Err(format!("it is {width}x{height} pixels: there is nothing to see"));
    }
    if width > LONGEST_SIDE || height > LONGEST_SIDE || width * height > MOST_PIXELS {
        return Err(format!(
            "it is {width}x{height} pixels; up to {MOST_PIXELS} pixels and {LONGEST_SIDE} a side are taken: scale it down"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
