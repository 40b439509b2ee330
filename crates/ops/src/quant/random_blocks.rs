//! Valid blocks from random bytes, for cases and tests of formats that can be read but not
//! quantized.

use super::Quant;

/// Makes the scales of random blocks finite: the exponents of f16 scales are limited to between
/// 2^−7 and 2.
pub(crate) fn make_scales_finite(quant: Quant, bytes: &mut [u8]) {
    let halves: &[usize] = match quant {
        Quant::Mxfp4 | Quant::Iq1M => &[],
        Quant::Tq1_0 => &[52],
        Quant::Tq2_0 => &[64],
        Quant::Q2K => &[80, 82],
        Quant::Q3K => &[108],
        Quant::Q6K => &[208],
        Quant::Q4_1 | Quant::Q5_1 | Quant::Q4K | Quant::Q5K => &[0, 2],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(quant.block().1) {
        for at in halves {
            block[at + 1] = block[at + 1] & 0x9f | 0x20;
        }
        match quant {
            Quant::Mxfp4 => block[0] = 120 + block[0] % 8,
            // The f16 scale is in the upper bits of four words, its uppermost bits in the last.
            Quant::Iq1M => block[55] = block[55] & 0x9f | 0x20,
            _ => {}
        }
    }
}
