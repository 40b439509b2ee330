//! Decodes an image file to upright RGB, as Pillow's `exif_transpose` and `convert("RGB")` do:
//! alpha is dropped, not blended; of an animation the first frame is taken; colour profiles and
//! gamma are not applied.

use super::orientation::{self, Orientation};
use super::{Image, MOST_BYTES, check_size, gif, jpeg, png};
use ::image::codecs::{bmp::BmpDecoder, tiff::TiffDecoder, webp::WebPDecoder};
use ::image::{ColorType, ExtendedColorType, ImageDecoder, ImageFormat, ImageResult, Limits};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that a decoder may hold besides the pixels.
const MOST_DECODER_BYTES: u64 = 64 << 20;

/// Decodes a JPEG, PNG, GIF, WebP, BMP or TIFF file, detected by its content.
///
/// Fails if the file has another format, is damaged or truncated, or is larger than
/// [`MOST_PIXELS`](super::MOST_PIXELS), [`LONGEST_SIDE`](super::LONGEST_SIDE) or [`MOST_BYTES`];
/// the size is checked in the header, before memory is allocated.
pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    const KNOWN: &str = "JPEG, PNG, GIF, WebP, BMP and TIFF are supported";
    if bytes.is_empty() {
        return Err("the image is empty: 0 bytes".into());
    }
    if bytes.len() > MOST_BYTES {
        return Err(format!("the image file has {} bytes; the limit is {MOST_BYTES}", bytes.len()));
    }
    let format = ::image::guess_format(bytes).map_err(|_| format!("not an image in a supported format: {KNOWN}"))?;
    type Decoder = fn(&[u8]) -> Result<Image, String>;
    let (name, decoder): (_, Decoder) = match format {
        ImageFormat::Jpeg => ("JPEG", jpeg::decode),
        ImageFormat::Gif => ("GIF", gif::decode),
        ImageFormat::Png => ("PNG", png::decode),
        ImageFormat::WebP => ("WebP", |b| read(WebPDecoder::new(Cursor::new(b)))),
        ImageFormat::Bmp => ("BMP", |b| read(BmpDecoder::new(Cursor::new(b)))),
        ImageFormat::Tiff => ("TIFF", tiff),
        other => return Err(format!("the image is {other:?}, but only {KNOWN}: convert it")),
    };
    // Decoders index and assert on what a hostile file says; a panic means a bad file and fails
    // this call alone.
    match catch_unwind(AssertUnwindSafe(|| decoder(bytes))) {
        Ok(result) => result.map_err(|why| format!("{name} image: {why}")),
        Err(_) => Err(format!("{name} image: it is inconsistent")),
    }
}

/// TIFF can hold nearly anything; only pixel types that decode as in Pillow are accepted.
fn tiff(bytes: &[u8]) -> Result<Image, String> {
    let decoder = TiffDecoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    match decoder.original_color_type() {
        ExtendedColorType::L1 | ExtendedColorType::L8 | ExtendedColorType::Rgb8 | ExtendedColorType::Rgb16 => {
            read(Ok(decoder))
        }
        other => {
            Err(format!("its pixels are {other:?}; for TIFF, 1 and 8 bit grey and RGB are supported: save it as PNG"))
        }
    }
}

fn read(decoder: ImageResult<impl ImageDecoder>) -> Result<Image, String> {
    let mut decoder = decoder.map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions();
    check_size(width.into(), height.into())?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(2 * decoder.total_bytes() + MOST_DECODER_BYTES);
    decoder.set_limits(limits).map_err(|e| e.to_string())?;
    // Damaged metadata is ignored, as in Pillow. TIFF has its own orientation tag.
    let (exif, xmp) = (decoder.exif_metadata().ok().flatten(), decoder.xmp_metadata().ok().flatten());
    let orientation = match decoder.orientation() {
        Ok(Orientation::NoTransforms) | Err(_) => orientation::of(exif.as_deref(), xmp.as_deref()),
        Ok(orientation) => orientation,
    };
    let color = decoder.color_type();
    let total = usize::try_from(decoder.total_bytes()).map_err(|_| "its pixels do not fit in memory")?;
    let mut raw = vec![0; total];
    decoder.read_image(&mut raw).map_err(|e| e.to_string())?;
    let rgb = to_rgb(raw, color)?;
    Ok(orientation::upright(Image::new(width as usize, height as usize, rgb)?, orientation))
}

/// As `convert("RGB")`: drops alpha, and takes the high byte of 16 bits.
fn to_rgb(raw: Vec<u8>, color: ColorType) -> Result<Vec<u8>, String> {
    let high = |p: &[u8], i: usize| (u16::from_ne_bytes([p[2 * i], p[2 * i + 1]]) >> 8) as u8;
    Ok(match color {
        ColorType::Rgb8 => raw,
        ColorType::L8 => map_pixels(raw, 1, |p| [p[0]; 3]),
        ColorType::Rgba8 => map_pixels(raw, 4, |p| [p[0], p[1], p[2]]),
        ColorType::Rgb16 => map_pixels(raw, 6, |p| [high(p, 0), high(p, 1), high(p, 2)]),
        other => return Err(format!("its pixels are {other:?}, which is not supported: save it as 8-bit RGB")),
    })
}

/// Maps every `size` bytes to three; in place if the result is not larger, because an image can
/// take most of the memory.
pub(super) fn map_pixels(mut raw: Vec<u8>, size: usize, rgb: impl Fn(&[u8]) -> [u8; 3]) -> Vec<u8> {
    if size < 3 {
        return raw.chunks_exact(size).flat_map(rgb).collect();
    }
    let pixels = raw.len() / size;
    for i in 0..pixels {
        let pixel = rgb(&raw[i * size..(i + 1) * size]);
        raw[i * 3..i * 3 + 3].copy_from_slice(&pixel);
    }
    raw.truncate(pixels * 3);
    raw.shrink_to_fit();
    raw
}
