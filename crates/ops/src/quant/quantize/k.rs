//! The formats whose scales are themselves in few bits of one scale for 256 elements, and those of uneven steps.

use super::fit::{Codes, Each, Parts, affine, centred, inverse, side_by_side, snapped, stepped, whole, within};
use crate::quant::Quant;
use crate::quant::blocks::{STEPS, put_codes};
use half::f16;

/// The half nearest to `x`, put at `at`, as the reader will see it.
#[inline(always)]
fn put_half(block: &mut [u8], at: usize, x: f32) -> f32 {
    let half = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Scales and least values in whole numbers, and the codes that go with them.
struct Parted<const L: usize> {
    scales: Each<L>,
    least: Each<L>,
    codes: [u8; 256],
}

/// What a format allows.
struct Limits {
    codes: Codes,
    /// Scales are in `scales.low..=scales.top`, least values in `0..=scales.top`.
    scales: Codes,
}

/// Finds the best whole scales near `s / d` and least values near `m / dm`: rounding one moves the best of the other.
#[inline(always)]
fn settled<const N: usize, const L: usize>(
    x: &Parts<N, L>,
    limits: &Limits,
    (s, d): (Each<L>, f32),
    (m, dm): (Each<L>, f32),
) -> Parted<L> {
    let (over, over_m) = (inverse(d), inverse(dm));
    let mut all = [0.0; L];
    for x in x {
        for l in 0..L {
            all[l] += x[l];
        }
    }
    let (mut error, mut scales, mut least) = ([f32::INFINITY; L], [0.0; L], [0.0; L]);
    for by in [0.0, -1.0, 1.0] {
        let (mut whole_s, mut whole_m) = ([0.0; L], [0.0; L]);
        let (mut real_s, mut real_m) = ([0.0; L], [0.0; L]);
        for l in 0..L {
            whole_s[l] = limits.scales.nearest(whole(s[l] * over) + by);
            real_s[l] = d * whole_s[l];
            whole_m[l] = whole(within(m[l] * over_m, 0.0, limits.scales.top));
            real_m[l] = dm * whole_m[l];
        }
        for _ in 0..2 {
            let fit = limits.codes.fit(x, &real_s, &real_m);
            for l in 0..L {
                let better = fit.error[l] < error[l];
                scales[l] = if better { whole_s[l] } else { scales[l] };
                least[l] = if better { whole_m[l] } else { least[l] };
                error[l] = if better { fit.error[l] } else { error[l] };
                // The least value that goes best with these codes.
                let wanted = (real_s[l] * fit.q[l] - all[l]) / N as f32;
                whole_m[l] = whole(within(wanted * over_m, 0.0, limits.scales.top));
                real_m[l] = dm * whole_m[l];
            }
            // Without least values there is nothing more to settle.
            if dm == 0.0 {
                break;
            }
        }
    }
    let mut codes = [0; 256];
    for (j, x) in x.iter().enumerate() {
        for l in 0..L {
            let q = limits.codes.nearest((x[l] + dm * least[l]) * inverse(d * scales[l]));
            codes[l * N + j] = (q - limits.codes.low) as u8;
        }
    }
    Parted { scales, least, codes }
}

#[inline(always)]
fn largest<const L: usize>(x: &Each<L>) -> f32 {
    let mut largest = 0f32;
    for x in x {
        largest = if x.abs() > largest.abs() { *x } else { largest };
    }
    largest
}

/// Formats with least values: halves d and least go to `at` and the two bytes after it.
#[inline(always)]
fn with_least<const N: usize, const L: usize>(
    x: &[f32; 256],
    limits: &Limits,
    at: usize,
    block: &mut [u8],
) -> Parted<L> {
    let x = side_by_side::<N, L>(x);
    let (s, m) = affine(&x, limits.codes);
    let d = put_half(block, at, largest(&s) / limits.scales.top);
    let dm = put_half(block, at + 2, largest(&m) / limits.scales.top);
    settled(&x, limits, (s, d), (m, dm))
}

/// Formats of 16 parts without them: half d goes to `at`.
#[inline(always)]
fn without(x: &[f32; 256], limits: &Limits, at: usize, block: &mut [u8]) -> Parted<16> {
    let x = side_by_side::<16, 16>(x);
    let s = centred(&x, limits.codes);
    // The scale of largest size becomes the lowest whole number, which has no opposite.
    let d = put_half(block, at, largest(&s) / limits.scales.low);
    settled(&x, limits, (s, d), ([0.0; 16], 0.0))
}

#[inline(always)]
pub(super) fn q2_k(x: &[f32; 256], block: &mut [u8]) {
    let limits = Limits { codes: Codes::up_to(3.0), scales: Codes::up_to(15.0) };
    let fit = with_least::<16, 16>(x, &limits, 80, block);
    for (i, out) in block[..16].iter_mut().enumerate() {
        *out = fit.scales[i] as u8 | (fit.least[i] as u8) << 4;
    }
    put_codes(Quant::Q2K, &fit.codes, block);
}

/// Q4_K and Q5_K.
#[inline(always)]
pub(super) fn q45_k<const BITS: u32>(x: &[f32; 256], block: &mut [u8]) {
    let limits = Limits { codes: Codes::up_to(((1 << BITS) - 1) as f32), scales: Codes::up_to(63.0) };
    let fit = with_least::<32, 8>(x, &limits, 0, block);
    for i in 0..4 {
        let (s, m) = (fit.scales[i + 4] as u8, fit.least[i + 4] as u8);
        block[4 + i] = fit.scales[i] as u8 | s >> 4 << 6;
        block[8 + i] = fit.least[i] as u8 | m >> 4 << 6;
        block[12 + i] = (s & 15) | m << 4;
    }
    put_codes(if BITS == 4 { Quant::Q4K } else { Quant::Q5K }, &fit.codes, block);
}

#[inline(always)]
pub(super) fn q3_k(x: &[f32; 256], block: &mut [u8]) {
    let limits = Limits { codes: Codes::around(4.0), scales: Codes::around(32.0) };
    let fit = without(x, &limits, 108, block);
    for (i, s) in fit.scales.into_iter().enumerate() {
        let s = (s + 32.0) as u8;
        block[96 + i % 8] |= (s & 15) << (i / 8 * 4);
        block[104 + i % 4] |= s >> 4 << (i / 4 * 2);
    }
    put_codes(Quant::Q3K, &fit.codes, block);
}

#[inline(always)]
pub(super) fn q6_k(x: &[f32; 256], block: &mut [u8]) {
    let limits = Limits { codes: Codes::around(32.0), scales: Codes::around(128.0) };
    let fit = without(x, &limits, 208, block);
    for (out, s) in block[192..208].iter_mut().zip(fit.scales) {
        *out = s as i8 as u8;
    }
    put_codes(Quant::Q6K, &fit.codes, block);
}

/// Up to eight blocks.
#[inline(always)]
pub(super) fn iq4_nl(x: &[f32], blocks: &mut [u8]) {
    let mut whole = [0.0; 256];
    whole[..x.len()].copy_from_slice(x);
    let parts = side_by_side::<32, 8>(&whole);
    let d = stepped(&parts, &STEPS);
    for (l, (x, block)) in x.as_chunks::<32>().0.iter().zip(blocks.chunks_exact_mut(18)).enumerate() {
        let over = inverse(put_half(block, 0, d[l]));
        let mut scaled = *x;
        for x in &mut scaled {
            *x *= over;
        }
        let (_, places) = snapped(&scaled, &STEPS);
        put_codes(Quant::Iq4Nl, &places.map(|place| place as u8), block);
    }
}
