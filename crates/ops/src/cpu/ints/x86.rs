//! AVX2 and AVX-512, each without and with the dot product instruction (VNNI).

use super::{Ints, lines_in_16_bits, one_by_one};
use crate::cpu::Lanes;
use crate::cpu::lanes::instructions;
use crate::cpu::lanes::x86::{Avx2, Avx512};
use std::arch::x86_64::*;

/// AVX2 with VEX-encoded dot products (AVX-VNNI).
#[derive(Clone, Copy)]
pub(crate) struct Avx2Vnni;

/// AVX-512 with dot products (VNNI).
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

/// Broadcasts four activations to every row.
#[inline(always)]
unsafe fn four(x: *const i8, i: usize) -> i32 {
    unsafe { x.cast::<i32>().add(i).read_unaligned() }
}

macro_rules! common_256 {
    () => {
        type L = Avx2;
        type B = __m256i;
        type I = __m256i;
        // Eight lines of one strip leave eight registers for sums and activations.
        const STRIPS: usize = 1;

        instructions! {
            fn bytes(p: *const u8) -> __m256i = _mm256_loadu_si256(p.cast());
            fn splat_byte(x: u8) -> __m256i = _mm256_set1_epi8(x as i8);
            fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
            fn or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
            fn xor(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
            fn up<const N: u32>(v: __m256i) -> __m256i = _mm256_sll_epi16(v, _mm_cvtsi32_si128(N as i32));
            fn down<const N: u32>(v: __m256i) -> __m256i = _mm256_srl_epi16(v, _mm_cvtsi32_si128(N as i32));
            fn table(t: &[u8; 16]) -> __m256i = _mm256_broadcastsi128_si256(_mm_loadu_si128(t.as_ptr().cast()));
            fn lookup(table: __m256i, index: __m256i) -> __m256i = _mm256_shuffle_epi8(table, index);
            fn splat(x: i32) -> __m256i = _mm256_set1_epi32(x);
            fn float(v: __m256i) -> <Avx2 as Lanes>::V = _mm256_cvtepi32_ps(v);
            fn float_u8(p: *const u8) -> <Avx2 as Lanes>::V =
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
            fn float_i8(p: *const i8) -> <Avx2 as Lanes>::V =
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
    };
}

macro_rules! common_512 {
    () => {
        type L = Avx512;
        type B = __m512i;
        type I = __m512i;
        const STRIPS: usize = 1;

        instructions! {
            fn bytes(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
            fn splat_byte(x: u8) -> __m512i = _mm512_set1_epi8(x as i8);
            fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
            fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
            fn xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
            fn up<const N: u32>(v: __m512i) -> __m512i = _mm512_slli_epi16::<N>(v);
            fn down<const N: u32>(v: __m512i) -> __m512i = _mm512_srli_epi16::<N>(v);
            fn table(t: &[u8; 16]) -> __m512i = _mm512_broadcast_i32x4(_mm_loadu_si128(t.as_ptr().cast()));
            fn lookup(table: __m512i, index: __m512i) -> __m512i = _mm512_shuffle_epi8(table, index);
            fn splat(x: i32) -> __m512i = _mm512_set1_epi32(x);
            fn float(v: __m512i) -> <Avx512 as Lanes>::V = _mm512_cvtepi32_ps(v);
            fn float_u8(p: *const u8) -> <Avx512 as Lanes>::V =
                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
            fn float_i8(p: *const i8) -> <Avx512 as Lanes>::V =
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
            fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
    };
}

impl Ints for Avx512Vnni {
    common_512!();
    one_by_one!();
    const RAISE: u8 = 128;

    #[inline(always)]
    unsafe fn dot(_: u32, mut sum: __m512i, lines: &[__m512i], x: *const i8) -> __m512i {
        // Two dependency chains: a single chain of eight has more latency than out-of-order
        // execution can hide.
        let mut other = unsafe { _mm512_setzero_si512() };
        for (i, line) in lines.iter().enumerate() {
            let x = unsafe { _mm512_set1_epi32(four(x, i)) };
            if i % 2 == 0 {
                sum = unsafe { _mm512_dpbusd_epi32(sum, *line, x) };
            } else {
                other = unsafe { _mm512_dpbusd_epi32(other, *line, x) };
            }
        }
        unsafe { _mm512_add_epi32(sum, other) }
    }
}

impl Ints for Avx2Vnni {
    common_256!();
    one_by_one!();
    const RAISE: u8 = 128;

    #[inline(always)]
    unsafe fn dot(_: u32, mut sum: __m256i, lines: &[__m256i], x: *const i8) -> __m256i {
        for (i, line) in lines.iter().enumerate() {
            sum = unsafe { _mm256_dpbusd_avx_epi32(sum, *line, _mm256_set1_epi32(four(x, i))) };
        }
        sum
    }
}

// Without VNNI: `maddubs` adds two products of unsigned and signed bytes in 16 bits, and saturates.
// With weights of few bits it cannot saturate, and several lines may be added before widening to 32
// bits. Wide weights move their sign to the activation: 128 · 127 · 2 just fits.

impl Ints for Avx512 {
    common_512!();
    one_by_one!();
    const RAISE: u8 = 0;

    #[inline(always)]
    unsafe fn dot(bits: u32, mut sum: __m512i, lines: &[__m512i], x: *const i8) -> __m512i {
        unsafe {
            let ones = _mm512_set1_epi16(1);
            if bits == 8 {
                for (i, line) in lines.iter().enumerate() {
                    let x = _mm512_set1_epi32(four(x, i));
                    let x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(*line), _mm512_setzero_si512(), x);
                    let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(*line), x);
                    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, ones));
                }
                return sum;
            }
            let together = lines_in_16_bits(bits);
            let mut pairs = _mm512_setzero_si512();
            for (i, line) in lines.iter().enumerate() {
                let product = _mm512_maddubs_epi16(*line, _mm512_set1_epi32(four(x, i)));
                pairs = if i % together == 0 { product } else { _mm512_add_epi16(pairs, product) };
                if (i + 1) % together == 0 || i + 1 == lines.len() {
                    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, ones));
                }
            }
            sum
        }
    }
}

impl Ints for Avx2 {
    common_256!();
    one_by_one!();
    const RAISE: u8 = 0;

    #[inline(always)]
    unsafe fn dot(bits: u32, mut sum: __m256i, lines: &[__m256i], x: *const i8) -> __m256i {
        unsafe {
            let ones = _mm256_set1_epi16(1);
            if bits == 8 {
                for (i, line) in lines.iter().enumerate() {
                    let x = _mm256_sign_epi8(_mm256_set1_epi32(four(x, i)), *line);
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(*line), x);
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                }
                return sum;
            }
            let together = lines_in_16_bits(bits);
            let mut pairs = _mm256_setzero_si256();
            for (i, line) in lines.iter().enumerate() {
                let product = _mm256_maddubs_epi16(*line, _mm256_set1_epi32(four(x, i)));
                pairs = if i % together == 0 { product } else { _mm256_add_epi16(pairs, product) };
                if (i + 1) % together == 0 || i + 1 == lines.len() {
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                }
            }
            sum
        }
    }
}
