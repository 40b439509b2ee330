//! SIMD vectors of f32, for each instruction set. Kernels are written over [`Lanes`] and never name
//! an intrinsic.
#![allow(unsafe_code, reason = "SIMD intrinsics and raw loads; each caller keeps its pointers inside its slices")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the trait's own contract is the reason for every block")]

/// Defines methods that are a single expression, mostly a single instruction.
macro_rules! instructions {
    ($(fn $name:ident $(<const $n:ident: $number:ty>)? ($($arg:ident: $type:ty),*) $(-> $out:ty)? = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $n: $number>)? ($($arg: $type),*) $(-> $out)? {
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use instructions;

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

#[cfg(target_arch = "x86_64")]
use super::gemm::dot_micro;
use super::gemm::{Product, micro};
use crate::cpu::Kernel;
use crate::cpu::elem::Elem;
use half::{bf16, f16};

/// A SIMD vector of f32.
///
/// # Safety
/// Every method may only be called on a processor that has the instruction set (see
/// [`super::Isa::run`]); loads and stores access `WIDTH` elements at the pointer.
pub(crate) trait Lanes: Copy + 'static {
    /// Lanes in a vector.
    const WIDTH: usize;
    /// The vector.
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);
    /// Stores two vectors, one after the other.
    #[inline(always)]
    unsafe fn store_two_bf16(p: *mut bf16, v: [Self::V; 2]) {
        unsafe {
            Self::store_bf16(p, v[0]);
            Self::store_bf16(p.add(Self::WIDTH), v[1]);
        }
    }
    unsafe fn load_f16(p: *const f16) -> Self::V;
    unsafe fn store_f16(p: *mut f16, v: Self::V);
    /// Loads the first of each of `WIDTH` pairs.
    unsafe fn load_even(p: *const bf16) -> Self::V;
    /// Loads the second of each of `WIDTH` pairs.
    unsafe fn load_odd(p: *const bf16) -> Self::V;
    unsafe fn load_i8(p: *const i8) -> Self::V;
    unsafe fn splat_f16(x: f16) -> Self::V;

    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a / b within an ulp, for a `b` that is neither tiny nor huge. Where division is slow, it is
    /// an estimate and a Newton step.
    #[inline(always)]
    unsafe fn quotient(a: Self::V, b: Self::V) -> Self::V {
        unsafe { Self::div(a, b) }
    }
    /// The smaller; `b` if either is NaN (on NEON, NaN).
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` if either is NaN (on NEON, NaN).
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// a·b + c, rounded once where the processor can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Rounds to the nearest integer.
    unsafe fn round(v: Self::V) -> Self::V;
    /// 2 to the power of an integer in −126..=127.
    unsafe fn exp2i(v: Self::V) -> Self::V;
    /// v·2ⁿ for an integer n in −126..=127.
    #[inline(always)]
    unsafe fn scale2(v: Self::V, n: Self::V) -> Self::V {
        unsafe { Self::mul(v, Self::exp2i(n)) }
    }
    unsafe fn sum(v: Self::V) -> f32;
    unsafe fn largest(v: Self::V) -> f32;

    /// Runs a kernel in a function of its own (not inlined), for code that would otherwise be
    /// compiled into every caller.
    fn outlined<K: Kernel>(kernel: K) -> K::Output;

    /// Computes one register tile of a matrix product (see [`micro`]) for up to `rows` rows, as
    /// many as have registers for their sums. Returns the number of rows.
    unsafe fn tile<B: Elem>(rows: usize, p: &Product<'_, f32, B>) -> usize;

    /// Prefetches the cache line at `p`, which may be any address.
    #[inline(always)]
    fn fetch(_p: *const u8) {}

    /// Whether there is a bf16 dot product instruction, and so [`Lanes::dot_tile`].
    const DOTS: bool = false;
    /// Adds to `sums`, lane by lane, the dot product of a pair at `b` with the pair at `a`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 implements it yet"))]
    #[inline(always)]
    unsafe fn dot(_sums: Self::V, _a: *const bf16, _b: *const bf16) -> Self::V {
        unreachable!("these lanes have no dot products")
    }
    /// [`Lanes::tile`] with bf16 dot product instructions.
    #[inline(always)]
    unsafe fn dot_tile(_rows: usize, _p: &Product<'_, bf16, bf16>) -> usize {
        unreachable!("these lanes have no dot products")
    }
}

/// Plain Rust over eight lanes, which the compiler vectorizes for its baseline.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

const N: usize = 8;

impl Scalar {
    #[inline(always)]
    fn each(f: impl Fn(usize) -> f32) -> [f32; N] {
        std::array::from_fn(f)
    }
}

impl Lanes for Scalar {
    const WIDTH: usize = N;
    type V = [f32; N];

    #[inline(never)]
    fn outlined<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        Self::each(|i| unsafe { (*p.add(i)).to_f32() })
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        (0..N).for_each(|i| unsafe { *p.add(i) = bf16::from_f32(v[i]) });
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        Self::each(|i| unsafe { (*p.add(i)).to_f32() })
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: Self::V) {
        (0..N).for_each(|i| unsafe { *p.add(i) = f16::from_f32(v[i]) });
    }
    #[inline(always)]
    unsafe fn load_even(p: *const bf16) -> Self::V {
        Self::each(|i| unsafe { (*p.add(2 * i)).to_f32() })
    }
    #[inline(always)]
    unsafe fn load_odd(p: *const bf16) -> Self::V {
        Self::each(|i| unsafe { (*p.add(2 * i + 1)).to_f32() })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::V {
        Self::each(|i| unsafe { f32::from(*p.add(i)) })
    }
    #[inline(always)]
    unsafe fn splat_f16(x: f16) -> Self::V {
        [x.to_f32(); N]
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        Self::each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Not `mul_add`: without an FMA instruction that is a library call per lane.
        Self::each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        // Adding and subtracting 1.5·2²³ rounds the fraction away.
        const SHIFT: f32 = 12_582_912.0;
        Self::each(|i| (v[i] + SHIFT) - SHIFT)
    }
    #[inline(always)]
    unsafe fn exp2i(v: Self::V) -> Self::V {
        Self::each(|i| f32::from_bits(((v[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        v.iter().sum()
    }
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn tile<B: Elem>(rows: usize, p: &Product<'_, f32, B>) -> usize {
        unsafe {
            match rows {
                2.. => micro::<Self, B, 2, 1>(p),
                _ => micro::<Self, B, 1, 1>(p),
            }
        }
    }
}
