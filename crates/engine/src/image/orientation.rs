//! Image orientation: from EXIF, or from XMP if EXIF has none, as Pillow's `getexif` finds it.

use super::Image;
pub(super) use ::image::metadata::Orientation;

/// The first `tiff:Orientation` of an XMP packet, as an attribute or as an element.
fn of_xmp(xmp: &[u8]) -> Option<Orientation> {
    const NAME: &[u8] = b"tiff:Orientation";
    let found = (0..xmp.len()).filter(|&i| xmp[i..].starts_with(NAME)).map(|i| &xmp[i + NAME.len()..]);
    let digit = |rest: &[u8]| match rest {
        [b'=', b'"', d @ b'0'..=b'9', ..] | [b'>', d @ b'0'..=b'9', ..] => Some(d - b'0'),
        _ => None,
    };
    found.filter_map(digit).next().and_then(Orientation::from_exif)
}

/// The orientation from EXIF, else from XMP.
pub(super) fn of(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Orientation {
    exif.and_then(Orientation::from_exif_chunk).or_else(|| xmp.and_then(of_xmp)).unwrap_or(Orientation::NoTransforms)
}

/// Rotates and flips the image to upright.
pub(super) fn upright(image: Image, orientation: Orientation) -> Image {
    let (w, h) = (image.width, image.height);
    // The source of pixel (x, y) of the result.
    type From = fn(usize, usize, usize, usize) -> (usize, usize);
    let (swap, from): (bool, From) = match orientation {
        Orientation::NoTransforms => return image,
        Orientation::FlipHorizontal => (false, |x, y, w, _| (w - 1 - x, y)),
        Orientation::Rotate180 => (false, |x, y, w, h| (w - 1 - x, h - 1 - y)),
        Orientation::FlipVertical => (false, |x, y, _, h| (x, h - 1 - y)),
        Orientation::Rotate90FlipH => (true, |x, y, _, _| (y, x)),
        Orientation::Rotate90 => (true, |x, y, _, h| (y, h - 1 - x)),
        Orientation::Rotate270FlipH => (true, |x, y, w, h| (w - 1 - y, h - 1 - x)),
        Orientation::Rotate270 => (true, |x, y, w, _| (w - 1 - y, x)),
    };
    let (width, height) = if swap { (h, w) } else { (w, h) };
    let mut rgb = Vec::with_capacity(image.rgb.len());
    for y in 0..height {
        for x in 0..width {
            let (sx, sy) = from(x, y, w, h);
            let at = (sy * w + sx) * 3;
            rgb.extend_from_slice(&image.rgb[at..at + 3]);
        }
    }
    Image { width, height, rgb }
}
