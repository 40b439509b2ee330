//! Dequantizes blocks to floats, each format by its formula, rounding where GGML rounds.

use super::blocks::{KVALUES_IQ4NL, KVALUES_MXFP4, codes, half_power, scale_min, scale_q3};
use super::{Quant, iq};
use crate::{Error, Result};
use half::f16;

/// Dequantizes `bytes`, which are whole blocks, to f32. A scale in the file may be infinite or NaN;
/// then so are its elements.
pub fn dequantize(quant: Quant, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let (elements, size) = quant.block();
    if quant.bytes(out.len()) != Some(bytes.len()) {
        let what = format!(
            "{} bytes of {quant} for {} elements: blocks are {size} bytes for {elements}",
            bytes.len(),
            out.len()
        );
        return Err(Error::call("dequantize", what));
    }
    let blocks = bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements));
    match quant {
        Quant::Q4_0 => blocks.for_each(|(b, out)| offset::<32>(quant, half_at(b, 0), -8, b, out)),
        Quant::Q5_0 => blocks.for_each(|(b, out)| offset::<32>(quant, half_at(b, 0), -16, b, out)),
        Quant::Q4_1 | Quant::Q5_1 => blocks.for_each(|(b, out)| with_min(quant, b, out)),
        Quant::Q8_0 => blocks.for_each(|(b, out)| {
            let d = half_at(b, 0);
            out.iter_mut().zip(&b[2..]).for_each(|(out, q)| *out = f32::from(*q as i8) * d);
        }),
        Quant::Q2K => blocks.for_each(|(b, out)| q2_k(b, out)),
        Quant::Q3K => blocks.for_each(|(b, out)| q3_k(b, out)),
        Quant::Q4K | Quant::Q5K => blocks.for_each(|(b, out)| q45_k(quant, b, out)),
        Quant::Q6K => blocks.for_each(|(b, out)| q6_k(b, out)),
        Quant::Iq4Nl => blocks.for_each(|(b, out)| codebook(quant, half_at(b, 0), &KVALUES_IQ4NL, b, out)),
        Quant::Iq4Xs => blocks.for_each(|(b, out)| iq4_xs(b, out)),
        Quant::Mxfp4 => blocks.for_each(|(b, out)| codebook(quant, half_power(b[0]), &KVALUES_MXFP4, b, out)),
        Quant::Tq2_0 => blocks.for_each(|(b, out)| offset::<256>(quant, half_at(b, 64), -1, b, out)),
        Quant::Tq1_0 => blocks.for_each(|(b, out)| tq1_0(b, out)),
        Quant::Iq1S => blocks.for_each(|(b, out)| iq::iq1_s(b, out)),
        Quant::Iq1M => blocks.for_each(|(b, out)| iq::iq1_m(b, out)),
        Quant::Iq2Xxs => blocks.for_each(|(b, out)| iq::iq2_xxs(b, out)),
        Quant::Iq2Xs => blocks.for_each(|(b, out)| iq::iq2_xs(b, out)),
        Quant::Iq2S => blocks.for_each(|(b, out)| iq::iq2_s(b, out)),
        Quant::Iq3Xxs => blocks.for_each(|(b, out)| iq::iq3_xxs(b, out)),
        Quant::Iq3S => blocks.for_each(|(b, out)| iq::iq3_s(b, out)),
    }
    Ok(())
}

/// The 16-bit field at `at`.
pub(super) fn word_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The f16 at `at`.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(word_at(block, at)).to_f32()
}

/// The 12 bytes of 6-bit scales at `at`.
fn scale_bytes(block: &[u8], at: usize) -> &[u8; 12] {
    block[at..].first_chunk().expect("every caller's block is longer")
}

/// d · (q + offset).
fn offset<const N: usize>(quant: Quant, d: f32, offset: i8, block: &[u8], out: &mut [f32]) {
    let codes = codes::<N>(quant, block);
    out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(q as i8 + offset));
}

/// d · q + m.
fn with_min(quant: Quant, block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let codes = codes::<32>(quant, block);
    out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(q) + m);
}

/// d · table[q].
fn codebook(quant: Quant, d: f32, table: &[i8; 16], block: &[u8], out: &mut [f32]) {
    let codes = codes::<32>(quant, block);
    out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(table[usize::from(q)]));
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let codes = codes::<256>(Quant::Q2K, block);
    for ((out, codes), s) in out.chunks_exact_mut(16).zip(codes.chunks_exact(16)).zip(block) {
        let (d, m) = (d * f32::from(s & 15), dmin * f32::from(s >> 4));
        out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(*q) - m);
    }
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 108);
    let codes = codes::<256>(Quant::Q3K, block);
    for (i, (out, codes)) in out.chunks_exact_mut(16).zip(codes.chunks_exact(16)).enumerate() {
        let d = d * f32::from(scale_q3(scale_bytes(block, 96), i) as i8 - 32);
        out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(*q as i8 - 4));
    }
}

fn q45_k(quant: Quant, block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let codes = codes::<256>(quant, block);
    for (i, (out, codes)) in out.chunks_exact_mut(32).zip(codes.chunks_exact(32)).enumerate() {
        let (s, m) = scale_min(scale_bytes(block, 4), i);
        let (d, m) = (d * f32::from(s), dmin * f32::from(m));
        out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(*q) - m);
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    let codes = codes::<256>(Quant::Q6K, block);
    for ((out, codes), s) in out.chunks_exact_mut(16).zip(codes.chunks_exact(16)).zip(&block[192..]) {
        let d = d * f32::from(*s as i8);
        out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(*q as i8 - 32));
    }
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), word_at(block, 2));
    let codes = codes::<256>(Quant::Iq4Xs, block);
    for (i, (out, codes)) in out.chunks_exact_mut(32).zip(codes.chunks_exact(32)).enumerate() {
        let s = (block[4 + i / 2] >> (i % 2 * 4) & 15) | ((high >> (2 * i) & 3) as u8) << 4;
        let d = d * f32::from(s as i8 - 32);
        out.iter_mut().zip(codes).for_each(|(out, q)| *out = d * f32::from(KVALUES_IQ4NL[usize::from(*q)]));
    }
}

/// Each byte has five base-3 digits, the first as the most significant: digit i becomes the most
/// significant after a multiplication by 3^i.
fn tq1_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 52);
    let parts = [(0..32, 5), (32..48, 5), (48..52, 4)];
    let mut out = out.iter_mut();
    for (bytes, digits) in parts {
        for digit in 0..digits {
            for byte in &block[bytes.clone()] {
                let top = byte.wrapping_mul(3u8.pow(digit));
                let q = ((u16::from(top) * 3) >> 8) as i8 - 1;
                if let Some(out) = out.next() {
                    *out = d * f32::from(q);
                }
            }
        }
    }
}
