//! PNG, by its decoder directly: through the `image` crate a few bytes of compressed XMP could
//! unpack to gigabytes.

use super::decode::map_pixels;
use super::orientation::{of, upright};
use super::{Image, check_size};
use ::png::text_metadata::ITXtChunk;
use ::png::{BitDepth, ColorType, Decoder, Limits, Transformations};
use std::io::Cursor;

/// For rows and metadata; the pixel buffer is ours.
const MOST_DECODER_BYTES: usize = 64 << 20;
/// The same limit as Pillow's, and far above any packet that only holds an orientation.
const MOST_XMP_BYTES: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    let limits = Limits { bytes: MOST_DECODER_BYTES };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_iccp_chunk(true);
    let head = decoder.read_header_info().map_err(|e| e.to_string())?;
    let (width, height) = (head.width, head.height);
    check_size(width.into(), height.into())?;
    // Pillow takes the high byte of 16 bits, but clips 16-bit grey without alpha at 255.
    let clip = (head.color_type, head.bit_depth) == (ColorType::Grayscale, BitDepth::Sixteen);
    let strip = if clip { Transformations::IDENTITY } else { Transformations::STRIP_16 };
    decoder.set_transformations(Transformations::EXPAND | strip);
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;

    // The first frame is the one that plain viewers show, whether it is part of the animation or
    // not.
    let mut raw = vec![0; reader.output_buffer_size().ok_or("its pixels do not fit in memory")?];
    reader.next_frame(&mut raw).map_err(|e| e.to_string())?;
    // Chunks after the pixels may hold the orientation; errors in them are ignored.
    let _ = reader.finish();
    let clipped = |p: &[u8]| [u16::from_be_bytes([p[0], p[1]]).min(255) as u8; 3];
    let rgb = match reader.output_color_type() {
        (ColorType::Grayscale, BitDepth::Sixteen) => map_pixels(raw, 2, clipped),
        (ColorType::GrayscaleAlpha, BitDepth::Sixteen) => map_pixels(raw, 4, clipped),
        (ColorType::Grayscale, BitDepth::Eight) => map_pixels(raw, 1, |p| [p[0]; 3]),
        (ColorType::GrayscaleAlpha, BitDepth::Eight) => map_pixels(raw, 2, |p| [p[0]; 3]),
        (ColorType::Rgb, BitDepth::Eight) => raw,
        (ColorType::Rgba, BitDepth::Eight) => map_pixels(raw, 4, |p| [p[0], p[1], p[2]]),
        other => return Err(format!("its pixels are {other:?}, which is not supported: save it as 8-bit RGB")),
    };

    let info = reader.info();
    let mut xmp = info.utf8_text.iter().find(|text| text.keyword == "XML:com.adobe.xmp").cloned();
    // `get_text` alone would unpack without a limit.
    let unpack = |text: &mut ITXtChunk| text.decompress_text_with_limit(MOST_XMP_BYTES).and_then(|()| text.get_text());
    let xmp = xmp.as_mut().and_then(|text| unpack(text).ok());
    let orientation = of(info.exif_metadata.as_deref(), xmp.as_deref().map(str::as_bytes));
    Ok(upright(Image::new(width as usize, height as usize, rgb)?, orientation))
}
