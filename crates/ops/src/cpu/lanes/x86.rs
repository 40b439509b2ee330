//! AVX2 (with FMA and F16C) and AVX-512.

use super::{Lanes, Product, dot_micro, micro};
use crate::cpu::elem::Elem;
use crate::cpu::{Kernel, isa};
use half::{bf16, f16};
use std::arch::x86_64::*;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// 256 bits: eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Lanes for Avx2 {
    #[inline(always)]
    fn fetch(p: *const u8) {
        // SAFETY: a prefetch has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    const WIDTH: usize = 8;
    type V = __m256;

    #[inline(never)]
    fn outlined<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: `Isa` has checked that the processor has this instruction set.
        unsafe { isa::avx2(kernel) }
    }

    instructions! {
        fn splat(x: f32) -> Self::V = _mm256_set1_ps(x);
        fn load(p: *const f32) -> Self::V = _mm256_loadu_ps(p);
        fn store(p: *mut f32, v: Self::V) = _mm256_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        unsafe {
            let bits = _mm256_castps_si256(v);
            // Rounds to nearest, ties to even: adds half of the last place, less one if the upper
            // half is even.
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            // The carry would turn some NaNs into infinities: they keep their bits and are made
            // quiet.
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let top = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
            _mm_storeu_si128(p.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: Self::V) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    // A pair is the two halves of 32 bits, the first the lower.
    #[inline(always)]
    unsafe fn load_even(p: *const bf16) -> Self::V {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_odd(p: *const bf16) -> Self::V {
        unsafe {
            let pairs = _mm256_loadu_si256(p.cast());
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000u32 as i32)))
        }
    }
    instructions! {
        fn load_i8(p: *const i8) -> Self::V = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        fn splat_f16(x: f16) -> Self::V = _mm256_cvtph_ps(_mm_set1_epi16(x.to_bits() as i16));
        fn add(a: Self::V, b: Self::V) -> Self::V = _mm256_add_ps(a, b);
        fn sub(a: Self::V, b: Self::V) -> Self::V = _mm256_sub_ps(a, b);
        fn mul(a: Self::V, b: Self::V) -> Self::V = _mm256_mul_ps(a, b);
        fn div(a: Self::V, b: Self::V) -> Self::V = _mm256_div_ps(a, b);
        fn min(a: Self::V, b: Self::V) -> Self::V = _mm256_min_ps(a, b);
        fn max(a: Self::V, b: Self::V) -> Self::V = _mm256_max_ps(a, b);
        fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V = _mm256_fmadd_ps(a, b, c);
        fn round(v: Self::V) -> Self::V = _mm256_round_ps::<NEAREST>(v);
    }
    #[inline(always)]
    unsafe fn exp2i(v: Self::V) -> Self::V {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    // 6 rows × 2 vectors = 12 of the 16 registers; two hold B, one A.
    #[inline(always)]
    unsafe fn tile<B: Elem>(rows: usize, p: &Product<'_, f32, B>) -> usize {
        unsafe {
            match rows {
                6.. => micro::<Self, B, 6, 2>(p),
                5 => micro::<Self, B, 5, 2>(p),
                4 => micro::<Self, B, 4, 2>(p),
                3 => micro::<Self, B, 3, 2>(p),
                2 => micro::<Self, B, 2, 2>(p),
                _ => micro::<Self, B, 1, 2>(p),
            }
        }
    }
}

/// 512 bits: sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// AVX-512 with bf16 instructions.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

/// Implements `Lanes` for 512 bits: the common methods and `$own`.
macro_rules! sixteen { ($name:ident, $($own:item)*) => {
impl Lanes for $name {
    #[inline(always)]
    fn fetch(p: *const u8) {
        // SAFETY: a prefetch has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    $($own)*

    const WIDTH: usize = 16;
    type V = __m512;

    instructions! {
        fn splat(x: f32) -> Self::V = _mm512_set1_ps(x);
        fn load(p: *const f32) -> Self::V = _mm512_loadu_ps(p);
        fn store(p: *mut f32, v: Self::V) = _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    instructions! {
        fn load_f16(p: *const f16) -> Self::V = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn store_f16(p: *mut f16, v: Self::V) = _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(v));
        fn load_even(p: *const bf16) -> Self::V =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(p.cast())));
    }
    #[inline(always)]
    unsafe fn load_odd(p: *const bf16) -> Self::V {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32)))
        }
    }
    instructions! {
        fn load_i8(p: *const i8) -> Self::V = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        fn splat_f16(x: f16) -> Self::V = _mm512_cvtph_ps(_mm256_set1_epi16(x.to_bits() as i16));
        fn add(a: Self::V, b: Self::V) -> Self::V = _mm512_add_ps(a, b);
        fn sub(a: Self::V, b: Self::V) -> Self::V = _mm512_sub_ps(a, b);
        fn mul(a: Self::V, b: Self::V) -> Self::V = _mm512_mul_ps(a, b);
        fn div(a: Self::V, b: Self::V) -> Self::V = _mm512_div_ps(a, b);
    }
    #[inline(always)]
    unsafe fn quotient(a: Self::V, b: Self::V) -> Self::V {
        unsafe {
            let guess = _mm512_rcp14_ps(b);
            let inverse = _mm512_fmadd_ps(guess, _mm512_fnmadd_ps(b, guess, _mm512_set1_ps(1.0)), guess);
            let q = _mm512_mul_ps(a, inverse);
            _mm512_fmadd_ps(inverse, _mm512_fnmadd_ps(b, q, a), q)
        }
    }
    instructions! {
        fn min(a: Self::V, b: Self::V) -> Self::V = _mm512_min_ps(a, b);
        fn max(a: Self::V, b: Self::V) -> Self::V = _mm512_max_ps(a, b);
        fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V = _mm512_fmadd_ps(a, b, c);
        fn round(v: Self::V) -> Self::V = _mm512_roundscale_ps::<NEAREST>(v);
    }
    #[inline(always)]
    unsafe fn exp2i(v: Self::V) -> Self::V {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    instructions! {
        fn scale2(v: Self::V, n: Self::V) -> Self::V = _mm512_scalef_ps(v, n);
        fn sum(v: Self::V) -> f32 = _mm512_reduce_add_ps(v);
        fn largest(v: Self::V) -> f32 = _mm512_reduce_max_ps(v);
    }

    // 12 rows × 2 vectors = 24 of the 32 registers. Twice 8 rows need fewer loads than 12 and 4.
    #[inline(always)]
    unsafe fn tile<B: Elem>(rows: usize, p: &Product<'_, f32, B>) -> usize {
        unsafe {
            match rows {
                12 | 13 | 18.. => micro::<Self, B, 12, 2>(p),
                8.. => micro::<Self, B, 8, 2>(p),
                6.. => micro::<Self, B, 6, 2>(p),
                4.. => micro::<Self, B, 4, 2>(p),
                2.. => micro::<Self, B, 2, 2>(p),
                _ => micro::<Self, B, 1, 2>(p),
            }
        }
    }
}
}}

sixteen! { Avx512,
    #[inline(never)]
    fn outlined<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: `Isa` has checked that the processor has this instruction set.
        unsafe { isa::avx512(kernel) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        unsafe {
            let bits = _mm512_castps_si512(v);
            // As in AVX2: nearest, ties to even, NaN kept.
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let result = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(result)));
        }
    }
}

sixteen! { Avx512Bf16,
    #[inline(never)]
    fn outlined<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: `Isa` has checked that the processor has this instruction set.
        unsafe { if K::BF16 { isa::avx512_bf16(kernel) } else { isa::avx512(kernel) } }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        // The instruction rounds to nearest, ties to even, keeps NaN and flushes subnormal numbers
        // to zero.
        unsafe { _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v))) }
    }
    #[inline(always)]
    unsafe fn store_two_bf16(p: *mut bf16, v: [Self::V; 2]) {
        unsafe {
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[1], v[0]));
            _mm512_storeu_si512(p.cast(), both);
        }
    }

    const DOTS: bool = true;
    #[inline(always)]
    unsafe fn dot(sums: Self::V, a: *const bf16, b: *const bf16) -> Self::V {
        unsafe {
            // Casts to the type that the intrinsic takes.
            let pairs = |v: __m512i| std::mem::transmute::<__m512i, __m512bh>(v);
            let (a, b) = (_mm512_set1_epi32(a.cast::<i32>().read_unaligned()), _mm512_loadu_si512(b.cast()));
            _mm512_dpbf16_ps(sums, pairs(a), pairs(b))
        }
    }
    #[inline(always)]
    unsafe fn dot_tile(rows: usize, p: &Product<'_, bf16, bf16>) -> usize {
        unsafe {
            match rows {
                12 | 13 | 18.. => dot_micro::<Self, 12, 2>(p),
                8.. => dot_micro::<Self, 8, 2>(p),
                6.. => dot_micro::<Self, 6, 2>(p),
                4.. => dot_micro::<Self, 4, 2>(p),
                2.. => dot_micro::<Self, 2, 2>(p),
                _ => dot_micro::<Self, 1, 2>(p),
            }
        }
    }
}
