//! Layout of quantized blocks in a GGUF file, for each block format.
//!
//! Every format that packs consists of a header (scales and minimums) and bit planes: the codes of
//! all its elements, or some bits of them. The planes of all formats follow one rule, so one
//! routine reads and writes them all.

use super::Quant;

/// A bit plane: some bits of each element's code.
pub(crate) struct Plane {
    /// Bits per element: 1, 2, 4 or 8.
    pub(crate) bits: usize,
    /// Offset of the first byte in the block.
    at: usize,
    /// `width` consecutive elements are in consecutive bytes, and the next `width` in the next
    /// higher bits of the same bytes.
    width: usize,
}

/// The fields of a block.
pub(crate) struct Shape {
    /// Offsets of the 16-bit fields of the header.
    pub(crate) halves: &'static [usize],
    /// The other bytes of the header.
    pub(crate) bytes: std::ops::Range<usize>,
    /// Ordered from the lowest bits up.
    pub(crate) planes: &'static [Plane],
}

const fn plane(bits: usize, at: usize, width: usize) -> Plane {
    Plane { bits, at, width }
}

const fn shape(halves: &'static [usize], bytes: std::ops::Range<usize>, planes: &'static [Plane]) -> Shape {
    Shape { halves, bytes, planes }
}

static Q4_0: Shape = shape(&[0], 0..0, &[plane(4, 2, 16)]);
static Q4_1: Shape = shape(&[0, 2], 0..0, &[plane(4, 4, 16)]);
static Q5_0: Shape = shape(&[0], 0..0, &[plane(4, 6, 16), plane(1, 2, 1)]);
static Q5_1: Shape = shape(&[0, 2], 0..0, &[plane(4, 8, 16), plane(1, 4, 1)]);
static Q8_0: Shape = shape(&[0], 0..0, &[plane(8, 2, 1)]);
static Q2_K: Shape = shape(&[80, 82], 0..16, &[plane(2, 16, 32)]);
static Q3_K: Shape = shape(&[108], 96..108, &[plane(2, 32, 32), plane(1, 0, 32)]);
static Q4_K: Shape = shape(&[0, 2], 4..16, &[plane(4, 16, 32)]);
static Q5_K: Shape = shape(&[0, 2], 4..16, &[plane(4, 48, 32), plane(1, 16, 32)]);
static Q6_K: Shape = shape(&[208], 192..208, &[plane(4, 0, 64), plane(2, 128, 32)]);
static IQ4_XS: Shape = shape(&[0, 2], 4..8, &[plane(4, 8, 16)]);
static MXFP4: Shape = shape(&[], 0..1, &[plane(4, 1, 16)]);
static TQ2_0: Shape = shape(&[64], 0..0, &[plane(2, 0, 32)]);

impl Shape {
    /// The layout of a format that packs.
    pub(crate) fn of(quant: Quant) -> Option<&'static Shape> {
        Some(match quant {
            Quant::Q4_0 | Quant::Iq4Nl => &Q4_0,
            Quant::Q4_1 => &Q4_1,
            Quant::Q5_0 => &Q5_0,
            Quant::Q5_1 => &Q5_1,
            Quant::Q8_0 => &Q8_0,
            Quant::Q2K => &Q2_K,
            Quant::Q3K => &Q3_K,
            Quant::Q4K => &Q4_K,
            Quant::Q5K => &Q5_K,
            Quant::Q6K => &Q6_K,
            Quant::Iq4Xs => &IQ4_XS,
            Quant::Mxfp4 => &MXFP4,
            Quant::Tq2_0 => &TQ2_0,
            _ => return None,
        })
    }
}

impl Plane {
    /// A mask of the plane's bits.
    pub(crate) fn mask(&self) -> u8 {
        0xff >> (8 - self.bits)
    }

    /// Reads the plane's bits of `codes.len()` elements.
    pub(crate) fn read(&self, block: &[u8], codes: &mut [u8]) {
        let (width, mask) = (self.width, self.mask());
        for (i, run) in codes.chunks_exact_mut(width).enumerate() {
            let (period, shift) = (i / (8 / self.bits), i % (8 / self.bits) * self.bits);
            let bytes = &block[self.at + period * width..][..width];
            run.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> shift & mask);
        }
    }

    /// The reverse of [`Plane::read`], into zeroed bytes.
    pub(crate) fn write(&self, codes: &[u8], block: &mut [u8]) {
        let width = self.width;
        for (i, run) in codes.chunks_exact(width).enumerate() {
            let (period, shift) = (i / (8 / self.bits), i % (8 / self.bits) * self.bits);
            let bytes = &mut block[self.at + period * width..][..width];
            run.iter().zip(bytes).for_each(|(code, byte)| *byte |= code << shift);
        }
    }
}

/// The complete codes of a block, all planes joined.
pub(crate) fn codes<const N: usize>(quant: Quant, block: &[u8]) -> [u8; N] {
    let mut codes = [0; N];
    let planes = Shape::of(quant).map_or(&[][..], |shape| shape.planes);
    let mut below = 0;
    for plane in planes {
        let mut part = [0; N];
        plane.read(block, &mut part);
        codes.iter_mut().zip(part).for_each(|(code, part)| *code |= part << below);
        below += plane.bits;
    }
    codes
}

/// Writes the complete codes of a block into its planes, which must be zeroed.
pub(crate) fn put_codes(quant: Quant, codes: &[u8], block: &mut [u8]) {
    let planes = Shape::of(quant).map_or(&[][..], |shape| shape.planes);
    let mut below = 0;
    let mut part = [0; 256];
    let part = &mut part[..codes.len()];
    for plane in planes {
        part.iter_mut().zip(codes).for_each(|(part, code)| *part = code >> below & plane.mask());
        plane.write(part, block);
        below += plane.bits;
    }
}

/// Scale and minimum `i` of the eight that Q4_K and Q5_K store in 12 bytes: the first four in 6
/// bits each, the other four with their upper two bits above those.
pub(crate) fn scale_min(bytes: &[u8; 12], i: usize) -> (u8, u8) {
    if i < 4 {
        (bytes[i] & 63, bytes[i + 4] & 63)
    } else {
        let low = bytes[i + 4];
        ((low & 15) | (bytes[i - 4] >> 6 << 4), (low >> 4) | (bytes[i] >> 6 << 4))
    }
}

/// Scale `i` of the sixteen that Q3_K stores in 12 bytes, as in the file: with an offset of 32.
pub(crate) fn scale_q3(bytes: &[u8; 12], i: usize) -> u8 {
    let low = bytes[i % 8] >> (i / 8 * 4) & 15;
    let high = bytes[8 + i % 4] >> (i / 4 * 2) & 3;
    low | high << 4
}

/// The non-linear codebook of IQ4_NL and IQ4_XS: GGML's `kvalues_iq4nl`.
pub(crate) const KVALUES_IQ4NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The 4-bit floats (E2M1) of MXFP4, doubled: GGML's `kvalues_mxfp4`.
pub(crate) const KVALUES_MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of 2^(e − 127): the factor of MXFP4's doubled floats.
pub(crate) fn half_power(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}
