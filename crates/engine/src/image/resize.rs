//! Pillow's `Image.resize` on 8-bit RGB, bit for bit: weights in f64, rounded to 22-bit fixed
//! point; one pass along the rows and one along the columns, each rounded to 8 bits.

use super::Image;
use sconce_ops::threads;
use std::ops::Range;

/// Fraction bits of Pillow's weights: 32 bits, less 8 for the value and 2 for overshoot.
const BITS: u32 = 22;
/// Rows per task of a thread: enough that rows at the seams, which are filtered twice, cost little.
const BAND: usize = 32;

/// Hamming's constants. They are `float` in Pillow's C code.
const HAMMING: (f64, f64) = (0.54f32 as f64, 0.46f32 as f64);

/// Resampling filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Nearest,
    Box,
    Bilinear,
    Hamming,
    Bicubic,
    Lanczos,
}

impl Filter {
    /// The filter of one of Pillow's numbers, as in `resample` of a model's files.
    pub(super) fn from_number(n: u64) -> Option<Filter> {
        Some(match n {
            0 => Filter::Nearest,
            1 => Filter::Lanczos,
            2 => Filter::Bilinear,
            3 => Filter::Bicubic,
            4 => Filter::Box,
            5 => Filter::Hamming,
            _ => return None,
        })
    }

    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        use std::f64::consts::PI;
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        let a = x.abs();
        match self {
            Filter::Nearest | Filter::Box => f64::from(x > -0.5 && x <= 0.5),
            Filter::Bilinear => (1.0 - a).max(0.0),
            Filter::Hamming if a == 0.0 => 1.0,
            Filter::Hamming if a >= 1.0 => 0.0,
            Filter::Hamming => (a * PI).sin() / (a * PI) * (HAMMING.0 + HAMMING.1 * (a * PI).cos()),
            // Catmull-Rom's sharpness, −1/2.
            Filter::Bicubic if a < 1.0 => (1.5 * a - 2.5) * a * a + 1.0,
            Filter::Bicubic if a < 2.0 => (((a - 5.0) * a + 8.0) * a - 4.0) * -0.5,
            Filter::Bicubic => 0.0,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

/// The input pixels of one output pixel, and their weights.
struct Tap {
    first: usize,
    weights: Vec<i32>,
}

impl Tap {
    fn end(&self) -> usize {
        self.first + self.weights.len()
    }
}

/// The taps of a `part` of the output, for `from` pixels scaled to `to`.
fn taps(from: usize, to: usize, part: Range<usize>, filter: Filter) -> Vec<Tap> {
    let scale = from as f64 / to as f64;
    let one = |weights: Vec<i32>, first| Tap { first, weights };
    if from == to {
        return part.map(|i| one(vec![1 << BITS], i)).collect();
    }
    if filter == Filter::Nearest {
        // Pillow accumulates the steps, and the accumulated rounding decides between two pixels.
        let positions = std::iter::successors(Some(scale * 0.5), |x| Some(x + scale));
        let nearest = |x: f64| one(vec![1 << BITS], (x as usize).min(from - 1));
        return positions.skip(part.start).take(part.len()).map(nearest).collect();
    }
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let tap = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let inverse = 1.0 / stretch;
        let weights: Vec<f64> =
            (0..end - first).map(|k| filter.weight(((k + first) as f64 - centre + 0.5) * inverse)).collect();
        let sum: f64 = weights.iter().fold(0.0, |s, w| s + w);
        let fixed = |w: &f64| {
            let scaled = (if sum == 0.0 { *w } else { w / sum }) * f64::from(1 << BITS);
            (scaled + 0.5f64.copysign(scaled)) as i32
        };
        one(weights.iter().map(fixed).collect(), first)
    };
    part.map(tap).collect()
}

fn to_byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// A window of the image scaled to `width` × `height`. Only the window is computed, so that a thin
/// image, which scales to gigabytes, costs no more than the window.
pub(super) fn resize_window(
    image: &Image,
    (width, height): (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Image {
    let line = columns.len() * 3;
    let across = taps(image.width, width, columns.clone(), filter);
    let down = taps(image.height, height, rows.clone(), filter);
    let mut rgb = vec![0; line * rows.len()];
    // The order of the passes shows in the rounding. Since version 13 Pillow begins with the
    // columns if these shrink by more than twice as much as the rows; before, it never did.
    let shrinks = height < image.height && image.height - height > 2 * image.width.saturating_sub(width);
    let resize = if shrinks { down_then_across } else { across_then_down };
    threads::for_each_chunk_mut(&mut rgb, line * BAND, |band, to| {
        let first = band * BAND;
        resize(image, &down[first..(first + BAND).min(down.len())], &across, to);
    });
    Image { width: columns.len(), height: rows.len(), rgb }
}

fn across_then_down(image: &Image, down: &[Tap], across: &[Tap], to: &mut [u8]) {
    let (line, from) = (across.len() * 3, span(down));
    let mut narrow = vec![0; line * from.len()]; // [from, columns, 3]
    for (row, to) in image.rgb.chunks_exact(image.width * 3).skip(from.start).zip(narrow.chunks_exact_mut(line)) {
        weigh_pixels(row, across, to);
    }
    let mut sums = vec![0; line];
    for (tap, to) in down.iter().zip(to.chunks_exact_mut(line)) {
        weigh_rows(narrow.chunks_exact(line).skip(tap.first - from.start), tap, &mut sums, to);
    }
}

fn down_then_across(image: &Image, down: &[Tap], across: &[Tap], to: &mut [u8]) {
    let from = span(across);
    let mut low = vec![0; image.width * 3]; // [columns of the picture, 3]
    let mut sums = vec![0; from.len() * 3];
    for (tap, to) in down.iter().zip(to.chunks_exact_mut(across.len() * 3)) {
        let rows = image.rgb.chunks_exact(image.width * 3).skip(tap.first).map(|r| &r[from.start * 3..from.end * 3]);
        weigh_rows(rows, tap, &mut sums, &mut low[from.start * 3..from.end * 3]);
        weigh_pixels(&low, across, to);
    }
}

/// The input range that the taps read.
fn span(taps: &[Tap]) -> Range<usize> {
    taps.iter().map(|t| t.first).min().unwrap_or(0)..taps.iter().map(Tap::end).max().unwrap_or(0)
}

/// One output row from the rows of a tap.
fn weigh_rows<'a>(rows: impl Iterator<Item = &'a [u8]>, tap: &Tap, sums: &mut [i32], to: &mut [u8]) {
    sums.fill(1 << (BITS - 1));
    for (row, &weight) in rows.zip(&tap.weights) {
        sums.iter_mut().zip(row).for_each(|(sum, &p)| *sum += i32::from(p) * weight);
    }
    to.iter_mut().zip(sums).for_each(|(to, sum)| *to = to_byte(*sum));
}

/// Each output pixel of a row from the pixels of its tap.
fn weigh_pixels(row: &[u8], taps: &[Tap], to: &mut [u8]) {
    for (tap, to) in taps.iter().zip(to.chunks_exact_mut(3)) {
        let mut sums = [1 << (BITS - 1); 3];
        for (pixel, &weight) in row[tap.first * 3..tap.end() * 3].chunks_exact(3).zip(&tap.weights) {
            for (sum, &p) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(p) * weight;
            }
        }
        to.copy_from_slice(&sums.map(to_byte));
    }
}
