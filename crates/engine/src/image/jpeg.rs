//! JPEG, by its decoder directly and not through the `image` crate, which converts CMYK by another
//! formula than Pillow.

use super::decode::map_pixels;
use super::orientation::{of, upright};
use super::{Image, LONGEST_SIDE, check_size};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};

/// Most scans of a file: a scan takes time but few bytes. A progressive file needs about ten.
const MOST_SCANS: usize = 64;

pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    // Not strict: cameras write junk between segments, and Pillow accepts that too.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(LONGEST_SIDE as usize)
        .set_max_height(LONGEST_SIDE as usize)
        .jpeg_set_max_scans(MOST_SCANS);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(width as u64, height as u64)?;
    // Every block of 64 pixels takes at least a bit, so a small file cannot make us allocate much
    // memory.
    if (width * height).div_ceil(512) > bytes.len() {
        return Err(format!("its {} bytes cannot hold {width}x{height} pixels", bytes.len()));
    }
    check_end_marker(bytes)?;
    let stored = decoder.input_colorspace().ok_or("it has no colours")?;
    let wanted = match stored {
        ColorSpace::Luma | ColorSpace::YCbCr | ColorSpace::RGB => ColorSpace::RGB,
        ColorSpace::CMYK | ColorSpace::YCCK => stored,
        other => return Err(format!("its colours are {other:?}, which is not supported: save it as RGB")),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let raw = decoder.decode().map_err(|e| e.to_string())?;
    let rgb = match wanted {
        ColorSpace::CMYK => map_pixels(raw, 4, |p| cmyk_to_rgb([p[0], p[1], p[2]], p[3])),
        ColorSpace::YCCK => map_pixels(raw, 4, |p| cmyk_to_rgb(ycc_to_rgb(p[0], p[1], p[2]).map(|c| 255 - c), p[3])),
        _ => raw,
    };
    let orientation = of(decoder.exif().map(Vec::as_slice), decoder.xmp().map(Vec::as_slice));
    Ok(upright(Image::new(width, height, rgb)?, orientation))
}

/// A truncated file would decode to grey at its end. Like Pillow, refuse files without an end
/// marker.
fn check_end_marker(bytes: &[u8]) -> Result<(), String> {
    let mut at = 2;
    while let Some(&[a, b]) = bytes.get(at..at + 2) {
        at += match (a, b) {
            (0xFF, 0xD9) => return Ok(()),
            (0xFF, 0xFF) => 1,
            // No payload: stuffing, restarts, a second start.
            (0xFF, 0x00 | 0x01 | 0xD0..=0xD8) => 2,
            (0xFF, _) => match bytes.get(at + 2..at + 4) {
                Some(&[high, low]) => 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => break,
            },
            // Compressed data, or junk.
            _ => 1,
        };
    }
    Err("it is truncated: the end marker is missing".into())
}

/// CMYK to RGB. Like Pillow, assumes that every file stores CMYK inverted, 255 for no ink, as Adobe
/// does.
fn cmyk_to_rgb(light: [u8; 3], white: u8) -> [u8; 3] {
    light.map(|c| {
        // A product of two bytes, divided by 255 and rounded.
        let product = u32::from(255 - c) * u32::from(white) + 128;
        white - (((product >> 8) + product) >> 8) as u8
    })
}

/// JFIF's YCbCr to RGB in 16-bit fixed point, each term rounded as in libjpeg. For YCCK the
/// complement is stored ink.
fn ycc_to_rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91_881 * cr + HALF) >> 16);
    let g = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
    let b = y + ((116_130 * cb + HALF) >> 16);
    [r, g, b].map(|c| c.clamp(0, 255) as u8)
}
