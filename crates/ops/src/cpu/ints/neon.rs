//! NEON, without and with the dot product instruction, and with int8 matrix products (i8mm).

use super::{Ints, one_by_one};
use crate::cpu::Lanes;
use crate::cpu::lanes::instructions;
use crate::cpu::lanes::neon::Neon;
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON with `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct NeonDot;

/// NEON with `sdot` and `smmla`.
#[derive(Clone, Copy)]
pub(crate) struct NeonI8mm;

macro_rules! common {
    () => {
        type L = Neon;
        type B = uint8x16_t;
        type I = int32x4_t;
        // Eight lines of two strips are 16 of the 32 registers.
        const STRIPS: usize = 2;
        const RAISE: u8 = 0;

        instructions! {
            fn bytes(p: *const u8) -> uint8x16_t = vld1q_u8(p);
            fn splat_byte(x: u8) -> uint8x16_t = vdupq_n_u8(x);
            fn and(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vandq_u8(a, b);
            fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vorrq_u8(a, b);
            fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = veorq_u8(a, b);
            fn up<const N: u32>(v: uint8x16_t) -> uint8x16_t = vshlq_u8(v, vdupq_n_s8(N as i8));
            fn down<const N: u32>(v: uint8x16_t) -> uint8x16_t = vshlq_u8(v, vdupq_n_s8(-(N as i8)));
            fn table(t: &[u8; 16]) -> uint8x16_t = vld1q_u8(t.as_ptr());
            fn lookup(table: uint8x16_t, index: uint8x16_t) -> uint8x16_t = vqtbl1q_u8(table, index);
            fn splat(x: i32) -> int32x4_t = vdupq_n_s32(x);
            fn float(v: int32x4_t) -> <Neon as Lanes>::V = vcvtq_f32_s32(v);
        }
        #[inline(always)]
        unsafe fn float_u8(p: *const u8) -> <Neon as Lanes>::V {
            unsafe {
                let four = vcreate_u8(u64::from(p.cast::<u32>().read_unaligned()));
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four))))
            }
        }
        #[inline(always)]
        unsafe fn float_i8(p: *const i8) -> <Neon as Lanes>::V {
            unsafe {
                let four = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
            }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            // SAFETY: a hint, which reads nothing.
            unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly)) }
        }
    };
}

impl Ints for Neon {
    common!();
    one_by_one!();

    // Bytes below 64 are the same signed. Two products of wide bytes, 2 · 128 · 127, still fit 16
    // bits.
    #[inline(always)]
    unsafe fn dot(_: u32, mut sum: int32x4_t, lines: &[uint8x16_t], x: *const i8) -> int32x4_t {
        for (i, line) in lines.iter().enumerate() {
            unsafe {
                let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().add(i).read_unaligned()));
                let line = vreinterpretq_s8_u8(*line);
                let (low, high) = (vmull_s8(vget_low_s8(line), vget_low_s8(x)), vmull_high_s8(line, x));
                sum = vpadalq_s16(sum, vpaddq_s16(low, high));
            }
        }
        sum
    }
}

impl Ints for NeonDot {
    common!();
    one_by_one!();

    #[inline(always)]
    unsafe fn dot(_: u32, mut sum: int32x4_t, lines: &[uint8x16_t], x: *const i8) -> int32x4_t {
        for (i, lines) in lines.as_chunks::<4>().0.iter().enumerate() {
            unsafe {
                // Sixteen activations, four for each line.
                let x = vld1q_s8(x.add(16 * i));
                sum = sdot::<0>(sum, lines[0], x);
                sum = sdot::<1>(sum, lines[1], x);
                sum = sdot::<2>(sum, lines[2], x);
                sum = sdot::<3>(sum, lines[3], x);
            }
        }
        sum
    }
}

impl Ints for NeonI8mm {
    common!();

    /// Sums of the first two rows of the strip and of the other two, 2 × 2 each, in the order of
    /// `smmla`.
    type Two = [int32x4_t; 2];

    #[inline(always)]
    unsafe fn dot(bits: u32, sum: int32x4_t, lines: &[uint8x16_t], x: *const i8) -> int32x4_t {
        unsafe { <NeonDot as Ints>::dot(bits, sum, lines, x) }
    }
    #[inline(always)]
    unsafe fn two(a: int32x4_t, b: int32x4_t) -> Self::Two {
        unsafe { halves(a, b) }
    }
    #[inline(always)]
    unsafe fn dot_two(_: u32, mut sums: Self::Two, lines: &[uint8x16_t], x: [*const i8; 2]) -> Self::Two {
        for (i, lines) in lines.as_chunks::<2>().0.iter().enumerate() {
            unsafe {
                let x = vcombine_s8(vld1_s8(x[0].add(8 * i)), vld1_s8(x[1].add(8 * i)));
                let (first, second) = (vreinterpretq_s32_u8(lines[0]), vreinterpretq_s32_u8(lines[1]));
                // Eight consecutive elements of two rows each, from lines that have four elements
                // of four rows.
                sums[0] = smmla(sums[0], x, vzip1q_s32(first, second));
                sums[1] = smmla(sums[1], x, vzip2q_s32(first, second));
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn separate(sums: Self::Two) -> [int32x4_t; 2] {
        unsafe { halves(sums[0], sums[1]) }
    }
}

/// Joins the lower halves of both vectors, and the upper halves.
#[inline(always)]
unsafe fn halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
    }
}

/// `vmmlaq_s32`, whose intrinsic is not stable in Rust: adds the products of the two rows of `x`
/// with the two of `w`.
#[inline(always)]
unsafe fn smmla(mut sums: int32x4_t, x: int8x16_t, w: int32x4_t) -> int32x4_t {
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {x:v}.16b, {w:v}.16b",
            sums = inout(vreg) sums, x = in(vreg) x, w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// `vdotq_laneq_s32`, whose intrinsic is not stable in Rust.
#[inline(always)]
unsafe fn sdot<const LANE: usize>(mut sum: int32x4_t, line: uint8x16_t, x: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {line:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum, line = in(vreg) line, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
