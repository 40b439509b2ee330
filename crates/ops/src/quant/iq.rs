//! The IQ formats of 1.5 to 3.5 bits, whose codes select groups of four or eight elements from a
//! grid (codebook).

use super::dequantize::{half_at, word_at};
use super::grids::{self, Grid};

/// Offset that IQ1 formats add to their −1, 0 and 1.
const DELTA: f32 = 0.125;

fn long_at(block: &[u8], at: usize) -> u32 {
    u32::from(word_at(block, at)) | u32::from(word_at(block, at + 2)) << 16
}

/// Seven sign bits, and an eighth that makes the parity even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// d · entry · sign for each element of the grid's entry.
fn signed<const BITS: usize, const BYTES: usize>(
    grid: &Grid<BITS, BYTES>,
    entry: usize,
    d: f32,
    signs: u8,
    out: &mut [f32],
) {
    for (i, out) in out.iter_mut().enumerate() {
        let sign = if signs >> i & 1 == 1 { -1.0 } else { 1.0 };
        *out = d * f32::from(grid.at(entry, i)) * sign;
    }
}

pub(super) fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let entries = &block[2 + 8 * i..][..4];
        let tail = long_at(block, 6 + 8 * i);
        let d = d * (0.5 + (tail >> 28) as f32) * 0.25;
        for (j, out) in out.chunks_exact_mut(8).enumerate() {
            signed(&grids::IQ2_XXS, entries[j].into(), d, even_signs(tail >> (7 * j)), out);
        }
    }
}

pub(super) fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let code = word_at(block, 2 + 2 * i);
        let s = block[66 + i / 4] >> (i / 2 % 2 * 4) & 15;
        let d = d * (0.5 + f32::from(s)) * 0.25;
        signed(&grids::IQ2_XS, (code & 511).into(), d, even_signs(u32::from(code >> 9)), out);
    }
}

pub(super) fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
        let s = block[74 + i / 4] >> (i / 2 % 2 * 4) & 15;
        let d = d * (0.5 + f32::from(s)) * 0.25;
        signed(&grids::IQ2_S, usize::from(block[2 + i]) | high << 8, d, block[34 + i], out);
    }
}

pub(super) fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let entries = &block[2 + 8 * i..][..8];
        let tail = long_at(block, 66 + 4 * i);
        let d = d * (0.5 + (tail >> 28) as f32) * 0.5;
        for (j, out) in out.chunks_exact_mut(4).enumerate() {
            let signs = even_signs(tail >> (j / 2 * 7)) >> (j % 2 * 4);
            signed(&grids::IQ3_XXS, entries[j].into(), d, signs, out);
        }
    }
}

pub(super) fn iq3_s(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
        let s = block[106 + i / 16] >> (i / 8 % 2 * 4) & 15;
        let signs = block[74 + i / 2] >> (i % 2 * 4);
        signed(&grids::IQ3_S, usize::from(block[2 + i]) | high << 8, d * f32::from(1 + 2 * s), signs, out);
    }
}

pub(super) fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let word = word_at(block, 34 + i / 4 * 2);
        let d = d * f32::from(2 * (word >> 12 & 7) + 1);
        let delta = if word >> 15 == 0 { DELTA } else { -DELTA };
        let entry = usize::from(block[2 + i]) | usize::from(word >> (i % 4 * 3) & 7) << 8;
        out.iter_mut().enumerate().for_each(|(j, out)| *out = d * (f32::from(grids::IQ1.at(entry, j)) + delta));
    }
}

pub(super) fn iq1_m(block: &[u8], out: &mut [f32]) {
    let words: [u16; 4] = std::array::from_fn(|i| word_at(block, 48 + 2 * i));
    // The f16 scale is in four parts, one above the 3-bit scales of each word.
    let bits = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let d = half::f16::from_bits(bits).to_f32();
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let d = d * f32::from(2 * (words[i / 8] >> (i / 2 % 4 * 3) & 7) + 1);
        let high = block[32 + i / 2] >> (i % 2 * 4);
        let delta = if high & 8 == 0 { DELTA } else { -DELTA };
        let entry = usize::from(block[i]) | usize::from(high & 7) << 8;
        out.iter_mut().enumerate().for_each(|(j, out)| *out = d * (f32::from(grids::IQ1.at(entry, j)) + delta));
    }
}
