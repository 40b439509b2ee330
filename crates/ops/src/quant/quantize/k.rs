//! Quantizes to K-quants, whose scales are quantized with one scale per super-block of 256
//! elements, and to the formats with a non-linear codebook.

use super::fit::{affine, codebook_scale, error, inverse, nearest, round, rounded, symmetric};
use crate::quant::Quant;
use crate::quant::blocks::{KVALUES_IQ4NL, put_codes};
use half::f16;

/// Writes `x` as an f16 at `at`, and returns the rounded value.
#[inline(always)]
fn put_half(block: &mut [u8], at: usize, x: f32) -> f32 {
    let half = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Integer scales and minimums up to `max_scale` for `PARTS` parts of `N` elements, and their
/// codes.
struct Affine<const PARTS: usize> {
    scales: [u8; PARTS],
    mins: [u8; PARTS],
    codes: [u8; 256],
}

/// Writes the f16 scales d and dmin to `at` and the two bytes after it.
#[inline(always)]
fn affine_block<const N: usize, const PARTS: usize>(
    x: &[f32; 256],
    top: f32,
    max_scale: f32,
    at: usize,
    block: &mut [u8],
) -> Affine<PARTS> {
    let (parts, _) = x.as_chunks::<N>();
    let mut fits = [(0.0, 0.0); PARTS];
    let (mut scale, mut min) = (0f32, 0f32);
    for (fit, x) in fits.iter_mut().zip(parts) {
        *fit = affine(x, top);
        (scale, min) = (scale.max(fit.0), min.max(fit.1));
    }
    let d = put_half(block, at, scale / max_scale);
    let dmin = put_half(block, at + 2, min / max_scale);
    let mut out = Affine { scales: [0; PARTS], mins: [0; PARTS], codes: [0; 256] };
    for (i, (x, fit)) in parts.iter().zip(fits).enumerate() {
        let (s, m) = (round(fit.0 * inverse(d)), round(fit.1 * inverse(dmin)));
        let mut best = (f32::INFINITY, 0.0, 0.0, [0.0; N]);
        // Scale and minimum have been rounded: try the neighbours of both together.
        for ds in [0.0, -1.0, 1.0] {
            let s = (s + ds).clamp(0.0, max_scale);
            let mut m = m.clamp(0.0, max_scale);
            for _ in 0..2 {
                let over = inverse(d * s);
                let q = rounded(x, over, dmin * m * over, 0.0, top);
                let error = error(x, &q, d * s, dmin * m);
                if error < best.0 {
                    best = (error, s, m, q);
                }
                // The best minimum for these codes.
                let mut min_sum = 0.0;
                for (x, q) in x.iter().zip(q) {
                    min_sum += d * s * q - x;
                }
                m = round(min_sum / N as f32 * inverse(dmin)).clamp(0.0, max_scale);
            }
        }
        (out.scales[i], out.mins[i]) = (best.1 as u8, best.2 as u8);
        for (code, q) in out.codes[i * N..][..N].iter_mut().zip(best.3) {
            *code = q as u8;
        }
    }
    out
}

#[inline(always)]
pub(super) fn q2_k(x: &[f32; 256], block: &mut [u8]) {
    let fit = affine_block::<16, 16>(x, 3.0, 15.0, 80, block);
    for (out, (s, m)) in block.iter_mut().zip(fit.scales.into_iter().zip(fit.mins)) {
        *out = s | m << 4;
    }
    put_codes(Quant::Q2K, &fit.codes, block);
}

/// Q4_K and Q5_K.
#[inline(always)]
pub(super) fn q45_k<const BITS: u32>(x: &[f32; 256], block: &mut [u8]) {
    let fit = affine_block::<32, 8>(x, ((1 << BITS) - 1) as f32, 63.0, 0, block);
    for i in 0..4 {
        let (s, m) = (fit.scales[i + 4], fit.mins[i + 4]);
        block[4 + i] = fit.scales[i] | s >> 4 << 6;
        block[8 + i] = fit.mins[i] | m >> 4 << 6;
        block[12 + i] = (s & 15) | m << 4;
    }
    put_codes(if BITS == 4 { Quant::Q4K } else { Quant::Q5K }, &fit.codes, block);
}

/// Integer scales of 16 parts, from −max_scale up, and codes with an offset of `half`. The f16
/// scale d goes to `at`.
#[inline(always)]
fn symmetric_block(x: &[f32; 256], half: f32, max_scale: f32, at: usize, block: &mut [u8]) -> ([i8; 16], [u8; 256]) {
    let (parts, _) = x.as_chunks::<16>();
    let mut fits = [0.0; 16];
    let mut extreme = 0f32;
    for (fit, x) in fits.iter_mut().zip(parts) {
        *fit = symmetric(x, half);
        if fit.abs() > extreme.abs() {
            extreme = *fit;
        }
    }
    let d = put_half(block, at, extreme / -max_scale);
    let (mut scales, mut codes) = ([0; 16], [0; 256]);
    for (i, (x, fit)) in parts.iter().zip(fits).enumerate() {
        let s = round(fit * inverse(d));
        let mut best = (f32::INFINITY, 0.0, [0.0; 16]);
        for ds in [0.0, -1.0, 1.0] {
            let s = (s + ds).clamp(-max_scale, max_scale - 1.0);
            let q = rounded(x, inverse(d * s), 0.0, -half, half - 1.0);
            let error = error(x, &q, d * s, 0.0);
            if error < best.0 {
                best = (error, s, q);
            }
        }
        scales[i] = best.1 as i8;
        for (code, q) in codes[i * 16..][..16].iter_mut().zip(best.2) {
            *code = (q + half) as u8;
        }
    }
    (scales, codes)
}

#[inline(always)]
pub(super) fn q3_k(x: &[f32; 256], block: &mut [u8]) {
    let (scales, codes) = symmetric_block(x, 4.0, 32.0, 108, block);
    for (i, s) in scales.into_iter().enumerate() {
        let s = (s + 32) as u8;
        block[96 + i % 8] |= (s & 15) << (i / 8 * 4);
        block[104 + i % 4] |= s >> 4 << (i / 4 * 2);
    }
    put_codes(Quant::Q3K, &codes, block);
}

#[inline(always)]
pub(super) fn q6_k(x: &[f32; 256], block: &mut [u8]) {
    let (scales, codes) = symmetric_block(x, 32.0, 128.0, 208, block);
    for (out, s) in block[192..208].iter_mut().zip(scales) {
        *out = s as u8;
    }
    put_codes(Quant::Q6K, &codes, block);
}

#[inline(always)]
pub(super) fn iq4_nl(x: &[f32; 32], block: &mut [u8]) {
    let d = put_half(block, 0, codebook_scale(x, &KVALUES_IQ4NL));
    put_codes(Quant::Iq4Nl, &nearest(x, inverse(d), &KVALUES_IQ4NL), block);
}
