//! NEON, which every 64-bit ARM has.

use super::{Lanes, Product, micro};
use crate::cpu::Kernel;
use crate::cpu::elem::Elem;
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::arch::asm;

/// 128 bits: four lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Lanes for Neon {
    const WIDTH: usize = 4;
    type V = float32x4_t;

    #[inline(never)]
    fn outlined<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    instructions! {
        fn splat(x: f32) -> Self::V = vdupq_n_f32(x);
        fn load(p: *const f32) -> Self::V = vld1q_f32(p);
        fn store(p: *mut f32, v: Self::V) = vst1q_f32(p, v);
        fn load_bf16(p: *const bf16) -> Self::V = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.cast())));
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        unsafe {
            let bits = vreinterpretq_u32_f32(v);
            // Rounds to nearest, ties to even. NaN is made quiet, because the carry could turn it
            // into an infinity.
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            let result = vbslq_u32(vceqq_f32(v, v), rounded, quiet);
            vst1_u16(p.cast(), vshrn_n_u32::<16>(result));
        }
    }
    // A pair is the two halves of 32 bits, the first the lower.
    #[inline(always)]
    unsafe fn load_even(p: *const bf16) -> Self::V {
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_u16(vld1q_u16(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_odd(p: *const bf16) -> Self::V {
        unsafe {
            let pairs = vreinterpretq_u32_u16(vld1q_u16(p.cast()));
            vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))
        }
    }
    // Every 64-bit ARM converts to and from f16; the intrinsics are not stable in Rust.
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        let wide;
        unsafe {
            asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = lateout(vreg) wide, half = in(vreg) vld1_u16(p.cast()),
                 options(pure, nomem, nostack, preserves_flags));
        }
        wide
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: Self::V) {
        let half: uint16x4_t;
        unsafe {
            asm!("fcvtn {half:v}.4h, {v:v}.4s", half = lateout(vreg) half, v = in(vreg) v,
                 options(pure, nomem, nostack, preserves_flags));
            vst1_u16(p.cast(), half);
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::V {
        unsafe {
            let four = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }
    instructions! {
        fn splat_f16(x: f16) -> Self::V = vdupq_n_f32(x.to_f32());
        fn add(a: Self::V, b: Self::V) -> Self::V = vaddq_f32(a, b);
        fn sub(a: Self::V, b: Self::V) -> Self::V = vsubq_f32(a, b);
        fn mul(a: Self::V, b: Self::V) -> Self::V = vmulq_f32(a, b);
        fn div(a: Self::V, b: Self::V) -> Self::V = vdivq_f32(a, b);
        fn min(a: Self::V, b: Self::V) -> Self::V = vminq_f32(a, b);
        fn max(a: Self::V, b: Self::V) -> Self::V = vmaxq_f32(a, b);
        fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V = vfmaq_f32(c, a, b);
        fn round(v: Self::V) -> Self::V = vrndnq_f32(v);
        fn exp2i(v: Self::V) -> Self::V =
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(v), vdupq_n_s32(127))));
        fn sum(v: Self::V) -> f32 = vaddvq_f32(v);
        fn largest(v: Self::V) -> f32 = vmaxvq_f32(v);
    }

    // 6 rows × 4 vectors = 24 of the 32 registers.
    #[inline(always)]
    unsafe fn tile<B: Elem>(rows: usize, p: &Product<'_, f32, B>) -> usize {
        unsafe {
            match rows {
                6.. => micro::<Self, B, 6, 4>(p),
                4.. => micro::<Self, B, 4, 4>(p),
                2.. => micro::<Self, B, 2, 4>(p),
                _ => micro::<Self, B, 1, 4>(p),
            }
        }
    }
}
