//! Implementations of [`Format`] for the block formats that pack.
#![allow(unsafe_code, reason = "SIMD lanes; chunks are whole by `Packed`")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the contract of `Format` is the reason for every block")]

use super::Quant;
use super::blocks::{KVALUES_IQ4NL, KVALUES_MXFP4, half_power};
use super::format::{Format, Scales};
use super::unpack::*;
use crate::cpu::Lanes;
use crate::cpu::ints::{Ints, LINE, ROWS};

/// Formats of 32 elements with an f16 scale, and for some an f16 minimum after it.
macro_rules! small {
    ($name:ident, $doc:literal, bits $bits:literal, offset $offset:expr, halves $halves:literal, |$S:ident, $p:ident, $strip:ident| $lines:block) => {
        #[doc = $doc]
        pub(super) struct $name;

        impl Format for $name {
            const QUANT: Quant = Quant::$name;
            const BLOCK: usize = 32;
            const BITS: u32 = $bits;
            const PARTS: usize = 1;
            const OFFSET: Option<i32> = $offset;
            type Head = ();

            #[inline(always)]
            unsafe fn head(_: *const u8) {}
            #[inline(always)]
            unsafe fn lines<$S: Ints>(chunk: *const u8, _: usize, $strip: usize) -> [$S::B; 8] {
                unsafe {
                    let $p = chunk.add(2 * ROWS * $halves);
                    $lines
                }
            }
            #[inline(always)]
            unsafe fn scales<S: Ints>(chunk: *const u8, _: &(), _: usize, strip: usize) -> Scales<S> {
                unsafe {
                    let scale = halves::<S>(chunk, strip);
                    let min = if $halves == 2 { halves::<S>(chunk.add(2 * ROWS), strip) } else { scale };
                    Scales { scale: [scale; 2], min: [min; 2] }
                }
            }
        }
    };
}

small!(Q4_0, "d · (q − 8)", bits 4, offset Some(8), halves 1, |S, p, strip| { four_bits::<S>(p, strip) });
small!(Q4_1, "d · q + m", bits 4, offset None, halves 2, |S, p, strip| { four_bits::<S>(p, strip) });
small!(Q5_0, "d · (q − 16)", bits 5, offset Some(16), halves 1, |S, p, strip| {
    let mut lines = four_bits::<S>(p, strip);
    fifth_bit::<S>(&mut lines, p.add(4 * LINE), strip);
    lines
});
small!(Q5_1, "d · q + m", bits 5, offset None, halves 2, |S, p, strip| {
    let mut lines = four_bits::<S>(p, strip);
    fifth_bit::<S>(&mut lines, p.add(4 * LINE), strip);
    lines
});
small!(Q8_0, "d · q", bits 8, offset Some(0), halves 1, |S, p, strip| {
    let raise = S::splat_byte(S::RAISE);
    let mut lines = [raise; 8];
    for (i, line) in lines.iter_mut().enumerate() {
        // Adding 128 flips the uppermost bit.
        *line = S::xor(raise, S::bytes(p.add(i * LINE + strip * strip_bytes::<S>())));
    }
    lines
});
small!(Iq4Nl, "d · steps[q]", bits 8, offset Some(0), halves 1, |S, p, strip| {
    lookup::<S>(four_bits::<S>(p, strip), &KVALUES_IQ4NL, S::RAISE)
});

/// 2^e · floats[q]
pub(super) struct Mxfp4;

/// Offset that makes the floats of MXFP4 unsigned.
const MXFP4_OFFSET: u8 = 12;

impl Format for Mxfp4 {
    const QUANT: Quant = Quant::Mxfp4;
    const BLOCK: usize = 32;
    const BITS: u32 = 5;
    const PARTS: usize = 1;
    const OFFSET: Option<i32> = Some(MXFP4_OFFSET as i32);
    type Head = [f32; ROWS];

    #[inline(always)]
    unsafe fn head(chunk: *const u8) -> [f32; ROWS] {
        let mut scales = [0.0; ROWS];
        for (i, scale) in scales.iter_mut().enumerate() {
            *scale = half_power(unsafe { *chunk.add(i) });
        }
        scales
    }
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, _: usize, strip: usize) -> [S::B; 8] {
        unsafe { lookup::<S>(four_bits::<S>(chunk.add(ROWS), strip), &KVALUES_MXFP4, MXFP4_OFFSET) }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(_: *const u8, head: &[f32; ROWS], _: usize, strip: usize) -> Scales<S> {
        plain([unsafe { S::L::load(head.as_ptr().add(strip * S::L::WIDTH)) }; 2])
    }
}

/// d · (q − 1)
pub(super) struct Tq2_0;

impl Format for Tq2_0 {
    const QUANT: Quant = Quant::Tq2_0;
    const BLOCK: usize = 256;
    const BITS: u32 = 2;
    const PARTS: usize = 1;
    const OFFSET: Option<i32> = Some(1);
    type Head = ();

    #[inline(always)]
    unsafe fn head(_: *const u8) {}
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8] {
        unsafe { two_bits::<S>(chunk.add(2 * ROWS + step * 2 * LINE), strip) }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(chunk: *const u8, _: &(), _: usize, strip: usize) -> Scales<S> {
        plain([unsafe { halves::<S>(chunk, strip) }; 2])
    }
}

/// d · s · q − dmin · m, with s and m of 4 bits for 16 elements
pub(super) struct Q2K;

impl Format for Q2K {
    const QUANT: Quant = Quant::Q2K;
    const BLOCK: usize = 256;
    const BITS: u32 = 2;
    const PARTS: usize = 2;
    const OFFSET: Option<i32> = None;
    /// s and m, each `[16 parts][16 rows]`.
    type Head = [[[u8; ROWS]; 16]; 2];

    #[inline(always)]
    unsafe fn head(chunk: *const u8) -> Self::Head {
        let bytes = unsafe { chunk.add(4 * ROWS).cast::<[[u8; ROWS]; 16]>().read_unaligned() };
        let mut head = [bytes; 2];
        let [scales, min] = &mut head;
        scales.as_flattened_mut().iter_mut().for_each(|s| *s &= 15);
        min.as_flattened_mut().iter_mut().for_each(|m| *m >>= 4);
        head
    }
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8] {
        unsafe { two_bits::<S>(chunk.add((4 + 16) * ROWS + step * 2 * LINE), strip) }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(chunk: *const u8, head: &Self::Head, step: usize, strip: usize) -> Scales<S> {
        unsafe {
            let (d, m) = (halves::<S>(chunk, strip), negative::<S>(halves::<S>(chunk.add(2 * ROWS), strip)));
            let [scales, min] = head;
            Scales { scale: scaled::<S>(d, scales, 2 * step, strip), min: scaled::<S>(m, min, 2 * step, strip) }
        }
    }
}

/// d · (s − 32) · (q − 4), with s of 6 bits for 16 elements
pub(super) struct Q3K;

impl Format for Q3K {
    const QUANT: Quant = Quant::Q3K;
    const BLOCK: usize = 256;
    const BITS: u32 = 3;
    const PARTS: usize = 2;
    const OFFSET: Option<i32> = Some(4);
    type Head = [[i8; ROWS]; 16];

    #[inline(always)]
    unsafe fn head(chunk: *const u8) -> Self::Head {
        // The low four bits of scales 0 to 7, with those of 8 to 15 above them; the upper two bits
        // of scale i are at bit 2·(i / 4) of byte i % 4.
        let lows = unsafe { chunk.add(2 * ROWS).cast::<[u8; 2 * LINE]>().read_unaligned() };
        let highs = unsafe { chunk.add(2 * ROWS + 2 * LINE).cast::<[u8; LINE]>().read_unaligned() };
        let mut head = [[0; ROWS]; 16];
        let (fours, _) = head.as_flattened_mut().as_chunks_mut::<LINE>();
        for (i, four) in fours.iter_mut().enumerate() {
            for (j, s) in four.iter_mut().enumerate() {
                let low = lows[i % 2 * LINE + j] >> (i / 2 * 4) & 15;
                *s = (low | (highs[j] >> (2 * i) & 3) << 4) as i8 - 32;
            }
        }
        head
    }
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8] {
        unsafe {
            let low = chunk.add((2 + 12) * ROWS);
            let mut lines = two_bits::<S>(low.add(step * 2 * LINE), strip);
            third_bit::<S>(&mut lines, low.add((16 + step) * LINE), strip);
            lines
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(chunk: *const u8, head: &Self::Head, step: usize, strip: usize) -> Scales<S> {
        unsafe { plain(signed_scaled::<S>(halves::<S>(chunk, strip), head.as_ptr().add(2 * step), strip)) }
    }
}

/// s and m of Q4_K and Q5_K, each `[8 parts][16 rows]`.
type SixBits = [[[u8; ROWS]; 8]; 2];

/// Unpacks 6-bit scales and minimums: 12 bytes of each row at `p`, in the order of the file (see
/// [`super::blocks::scale_min`]).
#[inline(always)]
unsafe fn six_bits(p: *const u8) -> SixBits {
    let bytes = unsafe { p.cast::<[[u8; LINE]; 3]>().read_unaligned() };
    let mut head = [[[0; ROWS]; 8]; 2];
    let [scales, min] = &mut head;
    for (i, half) in [scales, min].into_iter().enumerate() {
        let half = half.as_flattened_mut();
        for j in 0..LINE {
            half[j] = bytes[i][j] & 63;
            half[LINE + j] = (bytes[2][j] >> (4 * i) & 15) | bytes[i][j] >> 6 << 4;
        }
    }
    head
}

/// Formats of 256 elements (super-blocks) with 6-bit scales and minimums.
macro_rules! six_bit_scales {
    ($name:ident, $doc:literal, bits $bits:literal, |$S:ident, $p:ident, $step:ident, $strip:ident| $lines:block) => {
        #[doc = $doc]
        pub(super) struct $name;

        impl Format for $name {
            const QUANT: Quant = Quant::$name;
            const BLOCK: usize = 256;
            const BITS: u32 = $bits;
            const PARTS: usize = 1;
            const OFFSET: Option<i32> = None;
            type Head = SixBits;

            #[inline(always)]
            unsafe fn head(chunk: *const u8) -> SixBits {
                unsafe { six_bits(chunk.add(4 * ROWS)) }
            }
            #[inline(always)]
            unsafe fn lines<$S: Ints>(chunk: *const u8, $step: usize, $strip: usize) -> [$S::B; 8] {
                unsafe {
                    let $p = chunk.add((4 + 12) * ROWS);
                    $lines
                }
            }
            #[inline(always)]
            unsafe fn scales<S: Ints>(chunk: *const u8, head: &SixBits, step: usize, strip: usize) -> Scales<S> {
                unsafe {
                    let (d, m) = (halves::<S>(chunk, strip), negative::<S>(halves::<S>(chunk.add(2 * ROWS), strip)));
                    let at = strip * S::L::WIDTH;
                    let scale = S::L::mul(d, S::float_u8(head[0][step].as_ptr().add(at)));
                    let min = S::L::mul(m, S::float_u8(head[1][step].as_ptr().add(at)));
                    Scales { scale: [scale; 2], min: [min; 2] }
                }
            }
        }
    };
}

six_bit_scales!(Q4K, "d · s · q − dmin · m, with s and m of 6 bits", bits 4, |S, p, step, strip| {
    four_bits::<S>(p.add(step * 4 * LINE), strip)
});
six_bit_scales!(Q5K, "d · s · q − dmin · m, with s and m of 6 bits", bits 5, |S, p, step, strip| {
    let mut lines = four_bits::<S>(p.add(step * 4 * LINE), strip);
    fifth_bit::<S>(&mut lines, p.add((32 + step) * LINE), strip);
    lines
});

/// d · s · (q − 32), with s of 8 bits for 16 elements
pub(super) struct Q6K;

impl Format for Q6K {
    const QUANT: Quant = Quant::Q6K;
    const BLOCK: usize = 256;
    const BITS: u32 = 6;
    const PARTS: usize = 2;
    const OFFSET: Option<i32> = Some(32);
    type Head = ();

    #[inline(always)]
    unsafe fn head(_: *const u8) {}
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8] {
        unsafe {
            let low = chunk.add((2 + 16) * ROWS);
            let mut lines = four_bits::<S>(low.add(step * 4 * LINE), strip);
            above_four::<S>(&mut lines, low.add((32 + step * 2) * LINE), strip);
            lines
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(chunk: *const u8, _: &(), step: usize, strip: usize) -> Scales<S> {
        unsafe {
            let scales = chunk.add(2 * ROWS).cast::<[i8; ROWS]>();
            plain(signed_scaled::<S>(halves::<S>(chunk, strip), scales.add(2 * step), strip))
        }
    }
}

/// d · (s − 32) · codebook[q], with s of 6 bits
pub(super) struct Iq4Xs;

impl Format for Iq4Xs {
    const QUANT: Quant = Quant::Iq4Xs;
    const BLOCK: usize = 256;
    const BITS: u32 = 8;
    const PARTS: usize = 1;
    const OFFSET: Option<i32> = Some(0);
    type Head = [[i8; ROWS]; 8];

    #[inline(always)]
    unsafe fn head(chunk: *const u8) -> Self::Head {
        let highs = unsafe { chunk.add(2 * ROWS).cast::<[u16; ROWS]>().read_unaligned() };
        let lows = unsafe { chunk.add(4 * ROWS).cast::<[[u8; ROWS]; 4]>().read_unaligned() };
        let mut head = [[0; ROWS]; 8];
        for (i, scales) in head.iter_mut().enumerate() {
            for (r, s) in scales.iter_mut().enumerate() {
                let low = lows[i / 2][r] >> (i % 2 * 4) & 15;
                *s = (low | ((u16::from_le(highs[r]) >> (2 * i) & 3) as u8) << 4) as i8 - 32;
            }
        }
        head
    }
    #[inline(always)]
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8] {
        unsafe {
            lookup::<S>(four_bits::<S>(chunk.add((4 + 4) * ROWS + step * 4 * LINE), strip), &KVALUES_IQ4NL, S::RAISE)
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Ints>(chunk: *const u8, head: &Self::Head, step: usize, strip: usize) -> Scales<S> {
        unsafe {
            let s = S::float_i8(head[step].as_ptr().add(strip * S::L::WIDTH));
            plain([S::L::mul(halves::<S>(chunk, strip), s); 2])
        }
    }
}
