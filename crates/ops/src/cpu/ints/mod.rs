//! int8 vectors and their dot products, for each instruction set: the basis of products with
//! quantized weights.
//!
//! The unit is a line: 64 bytes, four consecutive elements of each of 16 rows, which is what the
//! dot product instructions of every architecture take. A vector holds a strip of a line: as many
//! rows as the instruction set has f32 lanes.
#![allow(unsafe_code, reason = "SIMD intrinsics and raw loads; each caller keeps its pointers inside its slices")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the trait's own contract is the reason for every block")]

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use super::Lanes;
use super::lanes::Scalar;

/// Rows of a line.
pub(crate) const ROWS: usize = 16;

/// Bytes of a line.
pub(crate) const LINE: usize = 4 * ROWS;

/// Bytes in lanes, four per row.
///
/// Weights are unsigned and of few bits, or "wide": signed bytes, including −128. Activations are
/// signed bytes in −127..=127; several instruction sets would overflow with −128. Under these
/// conditions all implementations return the same integers.
///
/// # Safety
/// As for [`Lanes`]: only on a processor that has the instructions; loads read a whole vector at
/// the pointer.
pub(crate) trait Ints: Copy + 'static {
    /// The corresponding f32 lanes: one lane per row.
    type L: Lanes;
    /// Four bytes of each row of a strip.
    type B: Copy;
    /// An i32 for each row of a strip.
    type I: Copy;
    /// Sums for two sets of activations, in the order of [`Ints::dot_two`].
    type Two: Copy;
    /// Number of strips whose lines a product keeps in registers at once: 1 or 2.
    const STRIPS: usize;
    /// Offset added to wide bytes before [`Ints::dot`]: 128 if the instruction takes unsigned
    /// bytes, else 0.
    const RAISE: u8;

    unsafe fn bytes(p: *const u8) -> Self::B;
    unsafe fn splat_byte(x: u8) -> Self::B;
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    unsafe fn xor(a: Self::B, b: Self::B) -> Self::B;
    /// Shifts bits up, in some implementations across bytes: the caller masks out bits of the
    /// neighbour.
    unsafe fn up<const N: u32>(v: Self::B) -> Self::B;
    /// Shifts bits down, in some implementations across bytes.
    unsafe fn down<const N: u32>(v: Self::B) -> Self::B;
    /// Makes a table for [`Ints::lookup`].
    unsafe fn table(t: &[u8; 16]) -> Self::B;
    /// `table[index]` for each byte; each index must be below 16.
    unsafe fn lookup(table: Self::B, index: Self::B) -> Self::B;

    unsafe fn splat(x: i32) -> Self::I;
    /// Adds to `sum`, for each row, the products of its bytes in `lines` with the `4 · lines`
    /// activations at `x`. `bits`: all weights are below 2^bits; 8 means wide weights, offset by
    /// `RAISE`. It is a constant after inlining, as is the number of lines.
    unsafe fn dot(bits: u32, sum: Self::I, lines: &[Self::B], x: *const i8) -> Self::I;
    unsafe fn two(a: Self::I, b: Self::I) -> Self::Two;
    /// [`Ints::dot`] with two sets of activations, as matrix product instructions take them. The
    /// number of lines is even.
    unsafe fn dot_two(bits: u32, sums: Self::Two, lines: &[Self::B], x: [*const i8; 2]) -> Self::Two;
    /// Reverses [`Ints::two`].
    unsafe fn separate(sums: Self::Two) -> [Self::I; 2];
    /// Converts to f32.
    unsafe fn float(v: Self::I) -> <Self::L as Lanes>::V;
    /// Loads a byte per row, as f32.
    unsafe fn float_u8(p: *const u8) -> <Self::L as Lanes>::V;
    /// Loads a signed byte per row, as f32.
    unsafe fn float_i8(p: *const i8) -> <Self::L as Lanes>::V;
    /// Prefetches the cache line at `p`, which may be any address.
    unsafe fn prefetch(p: *const u8);
}

/// Lines whose products can be summed in 16 bits, two products per number.
#[cfg(target_arch = "x86_64")]
const fn lines_in_16_bits(bits: u32) -> usize {
    32767 / (((1 << bits) - 1) * 127 * 2)
}

/// Two separate sums, for instruction sets without matrix products.
macro_rules! one_by_one {
    () => {
        type Two = [Self::I; 2];

        #[inline(always)]
        unsafe fn two(a: Self::I, b: Self::I) -> Self::Two {
            [a, b]
        }
        #[inline(always)]
        unsafe fn dot_two(bits: u32, sums: Self::Two, lines: &[Self::B], x: [*const i8; 2]) -> Self::Two {
            let [a, b] = sums;
            unsafe { [<Self as Ints>::dot(bits, a, lines, x[0]), <Self as Ints>::dot(bits, b, lines, x[1])] }
        }
        #[inline(always)]
        unsafe fn separate(sums: Self::Two) -> [Self::I; 2] {
            sums
        }
    };
}
use one_by_one;

const N: usize = <Scalar as Lanes>::WIDTH;

// Loops and no closures, so that they compile well without the optimizer too.
impl Ints for Scalar {
    type L = Scalar;
    type B = [u8; 4 * N];
    type I = [i32; N];
    const STRIPS: usize = 1;
    const RAISE: u8 = 0;
    one_by_one!();

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> Self::B {
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat_byte(x: u8) -> Self::B {
        [x; 4 * N]
    }
    #[inline(always)]
    unsafe fn and(mut a: Self::B, b: Self::B) -> Self::B {
        a.iter_mut().zip(b).for_each(|(a, b)| *a &= b);
        a
    }
    #[inline(always)]
    unsafe fn or(mut a: Self::B, b: Self::B) -> Self::B {
        a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
        a
    }
    #[inline(always)]
    unsafe fn xor(mut a: Self::B, b: Self::B) -> Self::B {
        a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
        a
    }
    #[inline(always)]
    unsafe fn up<const S: u32>(mut v: Self::B) -> Self::B {
        v.iter_mut().for_each(|v| *v <<= S);
        v
    }
    #[inline(always)]
    unsafe fn down<const S: u32>(mut v: Self::B) -> Self::B {
        v.iter_mut().for_each(|v| *v >>= S);
        v
    }
    #[inline(always)]
    unsafe fn table(t: &[u8; 16]) -> Self::B {
        let mut table = [0; 4 * N];
        table[..16].copy_from_slice(t);
        table
    }
    #[inline(always)]
    unsafe fn lookup(table: Self::B, mut index: Self::B) -> Self::B {
        index.iter_mut().for_each(|i| *i = table[usize::from(*i & 15)]);
        index
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> Self::I {
        [x; N]
    }
    #[inline(always)]
    unsafe fn dot(bits: u32, mut sum: Self::I, lines: &[Self::B], x: *const i8) -> Self::I {
        for (i, line) in lines.iter().enumerate() {
            for (row, sum) in sum.iter_mut().enumerate() {
                for j in 0..4 {
                    let w = line[4 * row + j];
                    let w = if bits == 8 { i32::from(w as i8) } else { i32::from(w) };
                    *sum += w * i32::from(unsafe { *x.add(4 * i + j) });
                }
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn float(v: Self::I) -> [f32; N] {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    unsafe fn float_u8(p: *const u8) -> [f32; N] {
        unsafe { p.cast::<[u8; N]>().read() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn float_i8(p: *const i8) -> [f32; N] {
        unsafe { p.cast::<[i8; N]>().read() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}
