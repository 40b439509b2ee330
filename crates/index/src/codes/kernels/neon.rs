//! The kernels for NEON, which every 64-bit ARM has.
#![allow(unsafe_code, reason = "vector loads and stores")]

use std::arch::aarch64::*;

use super::BLOCK;

#[inline(always)]
fn load_u8(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads 16 bytes of a reference to 16.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline(always)]
fn load_i8(bytes: &[i8; 16]) -> int8x16_t {
    // SAFETY: reads 16 bytes of a reference to 16.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

#[inline(always)]
fn store(sums: &mut [u16; 8], vector: uint16x8_t) {
    // SAFETY: writes 16 bytes to a reference to 16.
    unsafe { vst1q_u16(sums.as_mut_ptr(), vector) }
}

/// The entries of two tables for the low and the high halves of 16 bytes, added.
#[inline(always)]
#[allow(unused_unsafe, reason = "these intrinsics are safe since Rust 1.87 or later, one by one")]
fn look_up(codes: uint8x16_t, low: uint8x16_t, high: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is part of the target.
    unsafe {
        let low = vqtbl1q_u8(low, vandq_u8(codes, vdupq_n_u8(15)));
        vaddq_u8(low, vqtbl1q_u8(high, vshrq_n_u8::<4>(codes)))
    }
}

/// The sums of the table entries of each row of a block.
#[allow(unused_unsafe, reason = "these intrinsics are safe since Rust 1.87 or later, one by one")]
pub(super) fn sums(codes: &[u8], tables: &[[u8; 16]], sums: &mut [u16; BLOCK]) {
    // SAFETY: NEON is part of the target.
    unsafe {
        let zero = vdupq_n_u16(0);
        let (mut all, mut odd) = ([zero; 4], [zero; 4]);
        for (codes, tables) in codes.as_chunks::<{ 2 * BLOCK }>().0.iter().zip(tables.as_chunks::<4>().0) {
            let codes = codes.as_chunks::<16>().0;
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| load_u8(&tables[i]));
            for lane in 0..4 {
                let first = look_up(load_u8(&codes[lane]), a, b);
                // Four entries of at most 63 fit into a byte.
                let sum = vreinterpretq_u16_u8(vaddq_u8(first, look_up(load_u8(&codes[lane + 4]), c, d)));
                all[lane] = vaddq_u16(all[lane], sum);
                odd[lane] = vsraq_n_u16::<8>(odd[lane], sum);
            }
        }
        let sums = sums.as_chunks_mut::<8>().0;
        for lane in 0..4 {
            store(&mut sums[2 * lane], vsubq_u16(all[lane], vshlq_n_u16::<8>(odd[lane])));
            store(&mut sums[2 * lane + 1], odd[lane]);
        }
    }
}

/// The product of two rows.
#[allow(unused_unsafe, reason = "these intrinsics are safe since Rust 1.87 or later, one by one")]
pub(super) fn dot(row: &[i8], query: &[i8]) -> i32 {
    // SAFETY: NEON is part of the target.
    unsafe {
        let mut sum = vdupq_n_s32(0);
        for (row, query) in row.as_chunks::<16>().0.iter().zip(query.as_chunks::<16>().0) {
            let (row, query) = (load_i8(row), load_i8(query));
            // Two products of at most 128 × 127 fit into 16 bits.
            let low = vmull_s8(vget_low_s8(row), vget_low_s8(query));
            sum = vpadalq_s16(sum, vmlal_s8(low, vget_high_s8(row), vget_high_s8(query)));
        }
        vaddvq_s32(sum)
    }
}
