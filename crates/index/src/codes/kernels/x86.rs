//! The kernels for AVX2 and AVX-512.
#![allow(unsafe_code, reason = "vector loads and stores; calls after run-time detection of the instruction set")]

use std::arch::x86_64::*;

use super::{BLOCK, BitQuery, Line};

/// See [`score_block`](super::score_block). The caller has detected AVX2.
pub(super) fn score_block_avx2(
    codes: &[u8],
    query: &BitQuery,
    (factors, line): (&[f32; BLOCK], Line),
    (sums, scores): (&mut [u16; BLOCK], &mut [f32; BLOCK]),
) -> u64 {
    // SAFETY: `Isa::Avx2` exists only where `Isa::all` has found the feature.
    unsafe {
        sums_avx2(codes, &query.tables, sums);
        scores_avx2(sums, query, (factors, line), scores)
    }
}

/// See [`score_block`](super::score_block). The caller has detected AVX-512 F and BW.
pub(super) fn score_block_avx512(
    codes: &[u8],
    query: &BitQuery,
    (factors, line): (&[f32; BLOCK], Line),
    (sums, scores): (&mut [u16; BLOCK], &mut [f32; BLOCK]),
) -> u64 {
    // SAFETY: `Isa::Avx512` exists only where `Isa::all` has found the features, AVX2 among them.
    unsafe {
        sums_avx512(codes, &query.tables, sums);
        scores_avx2(sums, query, (factors, line), scores)
    }
}

/// See [`dot`](super::dot). The caller has detected AVX2.
pub(super) fn dot_avx2(row: &[i8], query: &[i8]) -> i32 {
    // SAFETY: `Isa::Avx2` and those after it exist only where `Isa::all` has found the feature.
    unsafe { dot_avx2_inner(row, query) }
}

/// The product of a row to which 128 is added with the query. The caller has detected AVX-512 VNNI.
pub(super) fn dot_vnni(row: &[i8], query: &[i8]) -> i32 {
    // SAFETY: `Isa::Avx512Vnni` exists only where `Isa::all` has found the feature.
    unsafe { dot_vnni_inner(row, query) }
}

/// Asks for the cache lines of codes.
#[inline]
pub(super) fn prefetch(codes: &[i8]) {
    for line in codes.chunks(64) {
        // SAFETY: a hint, which reads nothing; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr()) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load128<T: Byte>(bytes: &[T; 16]) -> __m128i {
    // SAFETY: reads 16 bytes of a reference to 16; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load256<T: Byte>(bytes: &[T; 32]) -> __m256i {
    // SAFETY: reads 32 bytes of a reference to 32; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load512<T: Byte>(bytes: &[T; 64]) -> __m512i {
    // SAFETY: reads 64 bytes of a reference to 64; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store128(sums: &mut [u16; 8], vector: __m128i) {
    // SAFETY: writes 16 bytes to a reference to 16; the store needs no alignment.
    unsafe { _mm_storeu_si128(sums.as_mut_ptr().cast(), vector) }
}

/// Types of one byte.
trait Byte {}
impl Byte for u8 {}
impl Byte for i8 {}

/// The entries of two tables for the low and the high halves of 32 bytes, added.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up_avx2(codes: __m256i, low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(low)), _mm256_and_si256(codes, mask));
    let codes = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask);
    _mm256_add_epi8(low, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(high)), codes))
}

#[target_feature(enable = "avx2")]
fn sums_avx2(codes: &[u8], tables: &[[u8; 16]], sums: &mut [u16; BLOCK]) {
    // The sums of even and odd positions are in one register, where the odd ones spill into the
    // upper halves, and the odd ones alone in another; the difference is in the even ones.
    let zero = _mm256_setzero_si256();
    let (mut all, mut odd) = ([zero; 2], [zero; 2]);
    for (codes, tables) in codes.as_chunks::<{ 2 * BLOCK }>().0.iter().zip(tables.as_chunks::<4>().0) {
        let codes = codes.as_chunks::<32>().0;
        for half in 0..2 {
            let first = look_up_avx2(load256(&codes[half]), &tables[0], &tables[1]);
            let second = look_up_avx2(load256(&codes[half + 2]), &tables[2], &tables[3]);
            // Four entries of at most 63 fit into a byte.
            let sum = _mm256_add_epi8(first, second);
            all[half] = _mm256_add_epi16(all[half], sum);
            odd[half] = _mm256_add_epi16(odd[half], _mm256_srli_epi16::<8>(sum));
        }
    }
    let sums = sums.as_chunks_mut::<8>().0;
    for half in 0..2 {
        let even = _mm256_sub_epi16(all[half], _mm256_slli_epi16::<8>(odd[half]));
        store128(&mut sums[4 * half], _mm256_castsi256_si128(even));
        store128(&mut sums[4 * half + 1], _mm256_castsi256_si128(odd[half]));
        store128(&mut sums[4 * half + 2], _mm256_extracti128_si256::<1>(even));
        store128(&mut sums[4 * half + 3], _mm256_extracti128_si256::<1>(odd[half]));
    }
}

/// The entries of two tables for the low and the high halves of 64 bytes, added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn look_up_avx512(codes: __m512i, low: &[u8; 16], high: &[u8; 16]) -> __m512i {
    let mask = _mm512_set1_epi8(15);
    let low = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(low)), _mm512_and_si512(codes, mask));
    let codes = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask);
    _mm512_add_epi8(low, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(high)), codes))
}

#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn sums_avx512(codes: &[u8], tables: &[[u8; 16]], sums: &mut [u16; BLOCK]) {
    let (mut all, mut odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for (codes, tables) in codes.as_chunks::<{ 2 * BLOCK }>().0.iter().zip(tables.as_chunks::<4>().0) {
        let codes = codes.as_chunks::<64>().0;
        let first = look_up_avx512(load512(&codes[0]), &tables[0], &tables[1]);
        let second = look_up_avx512(load512(&codes[1]), &tables[2], &tables[3]);
        let sum = _mm512_add_epi8(first, second);
        all = _mm512_add_epi16(all, sum);
        odd = _mm512_add_epi16(odd, _mm512_srli_epi16::<8>(sum));
    }
    let even = _mm512_sub_epi16(all, _mm512_slli_epi16::<8>(odd));
    let sums = sums.as_chunks_mut::<8>().0;
    store128(&mut sums[0], _mm512_extracti32x4_epi32::<0>(even));
    store128(&mut sums[1], _mm512_extracti32x4_epi32::<0>(odd));
    store128(&mut sums[2], _mm512_extracti32x4_epi32::<1>(even));
    store128(&mut sums[3], _mm512_extracti32x4_epi32::<1>(odd));
    store128(&mut sums[4], _mm512_extracti32x4_epi32::<2>(even));
    store128(&mut sums[5], _mm512_extracti32x4_epi32::<2>(odd));
    store128(&mut sums[6], _mm512_extracti32x4_epi32::<3>(even));
    store128(&mut sums[7], _mm512_extracti32x4_epi32::<3>(odd));
}

/// Scores from sums. Products and sums are rounded one by one, not fused, so that every instruction
/// set finds the same rows.
#[target_feature(enable = "avx2")]
fn scores_avx2(
    sums: &[u16; BLOCK],
    query: &BitQuery,
    (factors, line): (&[f32; BLOCK], Line),
    scores: &mut [f32; BLOCK],
) -> u64 {
    let (step, total) = (_mm256_set1_ps(query.step), _mm256_set1_ps(query.total));
    let (base, threshold) = (_mm256_set1_ps(line.base), _mm256_set1_ps(line.threshold));
    let eights = sums.as_chunks::<8>().0.iter().zip(factors.as_chunks::<8>().0).zip(scores.as_chunks_mut::<8>().0);
    let mut mask = 0;
    for (i, ((sums, factors), scores)) in eights.enumerate() {
        // SAFETY: reads 16 and 32 bytes of references to as many; the loads need no alignment.
        let (sums, factors) = unsafe { (_mm_loadu_si128(sums.as_ptr().cast()), _mm256_loadu_ps(factors.as_ptr())) };
        let product = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(sums)), step);
        let score = _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(product, total), factors), base);
        // SAFETY: writes 32 bytes to a reference to as many; the store needs no alignment.
        unsafe { _mm256_storeu_ps(scores.as_mut_ptr(), score) };
        let above = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(score, threshold));
        mask |= u64::from(above as u8) << (8 * i);
    }
    mask
}

#[target_feature(enable = "avx2")]
fn dot_avx2_inner(row: &[i8], query: &[i8]) -> i32 {
    let mut sums = [_mm256_setzero_si256(); 2];
    for (row, query) in row.as_chunks::<32>().0.iter().zip(query.as_chunks::<32>().0) {
        let (row, query) = (row.as_chunks::<16>().0, query.as_chunks::<16>().0);
        for half in 0..2 {
            let a = _mm256_cvtepi8_epi16(load128(&row[half]));
            let b = _mm256_cvtepi8_epi16(load128(&query[half]));
            sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(a, b));
        }
    }
    let sum = _mm256_add_epi32(sums[0], sums[1]);
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_01_00_11_10>(sum));
    _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32::<0b_10_11_00_01>(sum)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn dot_vnni_inner(row: &[i8], query: &[i8]) -> i32 {
    let flip = _mm512_set1_epi8(-128);
    let mut sum = _mm512_setzero_si512();
    for (row, query) in row.as_chunks::<64>().0.iter().zip(query.as_chunks::<64>().0) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(load512(row), flip), load512(query));
    }
    _mm512_reduce_add_epi32(sum)
}
