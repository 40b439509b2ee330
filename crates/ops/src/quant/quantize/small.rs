//! Quantizes to the formats of 32 elements with one scale, rounding as GGML does.

use crate::quant::Quant;
use crate::quant::blocks::put_codes;
use half::f16;

/// 1 / d, or 0 for a block of zeros.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[inline(always)]
fn put_half(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Rounds half away from zero, like C's `round`; without a library call on instruction sets that
/// lack the instruction.
#[inline(always)]
fn round_away(x: f32) -> f32 {
    let integer = x.abs() as i32 as f32;
    (integer + f32::from(u8::from(x.abs() - integer >= 0.5))).copysign(x)
}

#[inline(always)]
pub(super) fn q8_0(x: &[f32; 32], block: &mut [u8]) {
    let d = q8_0_apart(x, &mut block[2..]);
    block[..2].copy_from_slice(&d.to_le_bytes());
}

/// Writes the codes of a block to `codes`, and returns its scale.
#[inline(always)]
pub(crate) fn q8_0_apart(x: &[f32; 32], codes: &mut [u8]) -> f16 {
    let mut largest = 0f32;
    for x in x {
        largest = largest.max(x.abs());
    }
    let d = largest / 127.0;
    let inverse = inverse(d);
    for (out, x) in codes.iter_mut().zip(x) {
        *out = round_away(x * inverse) as i8 as u8;
    }
    f16::from_f32(d)
}

/// Q4_0 and Q5_0: the element of largest absolute value, with its sign, becomes the lowest code.
#[inline(always)]
pub(super) fn symmetric<const BITS: u32>(x: &[f32; 32], block: &mut [u8]) {
    let mut extreme = x[0];
    for x in x {
        if x.abs() > extreme.abs() {
            extreme = *x;
        }
    }
    let half = (1 << (BITS - 1)) as f32;
    let d = extreme / -half;
    let inverse = inverse(d);
    let mut codes = [0; 32];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = ((x * inverse + (half + 0.5)) as u8).min((1 << BITS) - 1);
    }
    put_half(block, 0, d);
    put_codes(if BITS == 4 { Quant::Q4_0 } else { Quant::Q5_0 }, &codes, block);
}

/// Q4_1 and Q5_1: the range from the minimum to the maximum.
#[inline(always)]
pub(super) fn with_min<const BITS: u32>(x: &[f32; 32], block: &mut [u8]) {
    let (mut min, mut max) = (x[0], x[0]);
    for x in x {
        (min, max) = (min.min(*x), max.max(*x));
    }
    let top = (1 << BITS) - 1;
    let d = (max - min) / f32::from(top);
    let inverse = inverse(d);
    let mut codes = [0; 32];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (((x - min) * inverse + 0.5) as u8).min(top);
    }
    put_half(block, 0, d);
    put_half(block, 2, min);
    put_codes(if BITS == 4 { Quant::Q4_1 } else { Quant::Q5_1 }, &codes, block);
}
