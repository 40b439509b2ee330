//! The first frame of a GIF in its palette's own colours, as Pillow shows it: a transparent pixel
//! keeps the colour of its index, and so do pixels that the frame leaves uncovered. The `image`
//! crate would make both black.

use super::{Image, MOST_PIXELS, check_size};
use ::gif::{ColorOutput, DecodeOptions, MemoryLimit};
use std::num::NonZeroU64;

pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(NonZeroU64::new(MOST_PIXELS).ok_or("no memory is allowed")?));
    let mut decoder = options.read_info(bytes).map_err(|e| e.to_string())?;
    let screen = (usize::from(decoder.width()), usize::from(decoder.height()));
    let global = decoder.global_palette().map(<[u8]>::to_vec);

    let frame = decoder.next_frame_info().map_err(|e| e.to_string())?.ok_or("it has no frame")?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (w, h) = (usize::from(frame.width), usize::from(frame.height));
    let blank = frame.transparent.unwrap_or(0);
    let palette = frame.palette.clone().or(global).unwrap_or_default();
    // A frame may reach beyond the screen, which then grows.
    let (width, height) = (screen.0.max(left + w), screen.1.max(top + h));
    check_size(width as u64, height as u64)?;

    // As in Pillow, every index beyond the palette is black.
    let color = |index: u8| -> [u8; 3] {
        let at = usize::from(index) * 3;
        palette.get(at..at + 3).map_or([0; 3], |c| [c[0], c[1], c[2]])
    };
    let mut indices = vec![0; w * h];
    if !indices.is_empty() {
        decoder.read_into_buffer(&mut indices).map_err(|e| e.to_string())?;
    }
    let mut rgb = color(blank).repeat(width * height);
    for (y, row) in indices.chunks_exact(w.max(1)).enumerate() {
        let at = ((top + y) * width + left) * 3;
        for (to, &index) in rgb[at..].chunks_exact_mut(3).zip(row) {
            to.copy_from_slice(&color(index));
        }
    }
    Image::new(width, height, rgb)
}
