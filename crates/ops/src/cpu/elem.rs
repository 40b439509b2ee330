//! The three element types, loaded into f32 lanes and stored from them.
#![allow(unsafe_code, reason = "raw loads and stores; each caller keeps its pointers inside its slices")]

use super::Lanes;
use crate::DType;
use crate::buffer_pool::Pooled;
use half::{bf16, f16};

/// Lanes of the widest vector of any instruction set.
pub(crate) const MAX_WIDTH: usize = 16;

/// An element of activations or weights.
///
/// # Safety
/// The unsafe methods have the contract of [`Lanes`].
pub(crate) trait Elem: candle_core::WithDType + Default + Pooled {
    /// The corresponding dtype.
    const TYPE: DType;
    /// Whether this is bf16.
    const IS_BF16: bool = matches!(Self::TYPE, DType::BF16);
    /// Converts to f32.
    fn wide(self) -> f32;
    /// Converts from f32, rounding to nearest, ties to even.
    fn narrow(x: f32) -> Self;
    /// Loads a full vector.
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V;
    /// Stores a full vector.
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V);
    /// Stores two full vectors.
    #[inline(always)]
    unsafe fn store_two<S: Lanes>(p: *mut Self, v: [S::V; 2]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if Self::IS_BF16 {
                return S::store_two_bf16(p.cast(), v);
            }
            Self::store::<S>(p, v[0]);
            Self::store::<S>(p.add(S::WIDTH), v[1]);
        }
    }

    /// Loads the first `n` elements; the lanes beyond them are `fill`.
    #[inline(always)]
    unsafe fn load_part<S: Lanes>(p: *const Self, n: usize, fill: f32) -> S::V {
        let mut lanes = [fill; MAX_WIDTH];
        // SAFETY: `n` < WIDTH ≤ MAX_WIDTH elements may be read at `p`.
        unsafe {
            (0..n).for_each(|i| lanes[i] = (*p.add(i)).wide());
            S::load(lanes.as_ptr())
        }
    }

    /// Stores the first `n` lanes.
    #[inline(always)]
    unsafe fn store_part<S: Lanes>(p: *mut Self, n: usize, v: S::V) {
        let mut lanes = [0f32; MAX_WIDTH];
        // SAFETY: `n` < WIDTH ≤ MAX_WIDTH elements may be written at `p`.
        unsafe {
            S::store(lanes.as_mut_ptr(), v);
            (0..n).for_each(|i| *p.add(i) = Self::narrow(lanes[i]));
        }
    }
}

/// Splits `$len` elements into vectors of `$S`: the body runs with an offset and a number of lanes,
/// of which only the last may be less than `WIDTH`.
///
/// A macro, and not a function that takes a closure: a closure is compiled without the instruction
/// set of the kernel around it, so every intrinsic in it would become a call.
macro_rules! vectors {
    ($S:ty, $len:expr, |$i:ident, $lanes:ident| $body:block) => {{
        let len = $len;
        let mut at = 0;
        while at < len {
            let ($i, $lanes) = (at, <$S>::WIDTH.min(len - at));
            $body
            at += <$S>::WIDTH;
        }
    }};
}
pub(crate) use vectors;

/// Loads `lanes` elements at `at`; the lanes beyond them are `fill`.
#[inline(always)]
pub(crate) fn get<S: Lanes, T: Elem>(from: &[T], at: usize, lanes: usize, fill: f32) -> S::V {
    let from = &from[at..at + lanes];
    // SAFETY: the slice holds `lanes` elements.
    unsafe {
        if lanes == S::WIDTH { T::load::<S>(from.as_ptr()) } else { T::load_part::<S>(from.as_ptr(), lanes, fill) }
    }
}

/// Stores the first `lanes` lanes at `at`.
#[inline(always)]
pub(crate) fn put<S: Lanes, T: Elem>(to: &mut [T], at: usize, lanes: usize, v: S::V) {
    let to = &mut to[at..at + lanes];
    // SAFETY: the slice holds `lanes` elements.
    unsafe {
        if lanes == S::WIDTH {
            T::store::<S>(to.as_mut_ptr(), v)
        } else {
            T::store_part::<S>(to.as_mut_ptr(), lanes, v)
        }
    }
}

macro_rules! elem {
    ($type:ty, $dtype:ident, $load:ident, $store:ident, $wide:expr, $narrow:expr) => {
        impl Elem for $type {
            const TYPE: DType = DType::$dtype;
            #[inline(always)]
            fn wide(self) -> f32 {
                $wide(self)
            }
            #[inline(always)]
            fn narrow(x: f32) -> Self {
                $narrow(x)
            }
            #[inline(always)]
            unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
                // SAFETY: guaranteed by the caller.
                unsafe { S::$load(p) }
            }
            #[inline(always)]
            unsafe fn store<S: Lanes>(p: *mut Self, v: S::V) {
                // SAFETY: guaranteed by the caller.
                unsafe { S::$store(p, v) }
            }
        }
    };
}

elem!(f32, F32, load, store, |x: f32| x, |x: f32| x);
elem!(bf16, BF16, load_bf16, store_bf16, bf16::to_f32, bf16::from_f32);
elem!(f16, F16, load_f16, store_f16, f16::to_f32, f16::from_f32);

/// Runs the body with `$t` as the element type of `$dtype`.
macro_rules! with_elem {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            other => Err($crate::Error::call($op, format!("needs a float tensor, not {other}"))),
        }
    };
}
pub(crate) use with_elem;
