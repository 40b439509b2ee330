//! exp, erf, tanh and the activations over lanes. Errors are measured against libm in f64 by the tests below.
#![allow(unsafe_code, reason = "SIMD lanes")]
#![allow(clippy::excessive_precision, reason = "coefficients as they are known, whatever f32 keeps of them")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the contract of Lanes is the reason for every block")]

use super::Lanes;
use crate::Activation;

/// c₀ + c₁x + c₂x² + …, by Horner.
#[inline(always)]
unsafe fn poly<S: Lanes, const N: usize>(x: S::V, c: [f32; N]) -> S::V {
    unsafe {
        let mut y = S::splat(c[N - 1]);
        for i in (0..N - 1).rev() {
            y = S::fma(y, x, S::splat(c[i]));
        }
        y
    }
}

/// x held between `low` and `high`; NaN stays NaN, being the second operand each time.
#[inline(always)]
unsafe fn clamp<S: Lanes>(x: S::V, low: f32, high: f32) -> S::V {
    unsafe { S::max(S::splat(low), S::min(S::splat(high), x)) }
}

/// The larger, or NaN if either is: a broken number must not be dropped on the way.
#[inline(always)]
pub(crate) unsafe fn larger<S: Lanes>(a: S::V, b: S::V) -> S::V {
    // max gives its second operand when one is NaN, so only a NaN in `a` could be lost; a − a is 0 or NaN or, from an
    // infinity, NaN where the infinity would have been the answer: broken too.
    unsafe { S::add(S::max(a, b), S::sub(a, a)) }
}

/// eˣ within 2 ulp; held at the smallest normal number below −87.3 and at the largest power of two's reach above 88.
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes>(x: S::V) -> S::V {
    unsafe {
        let x = clamp::<S>(x, -87.3, 88.0);
        // x = n·ln 2 + r with |r| ≤ ln 2 / 2; ln 2 in two parts, so that n·ln 2 is taken off exactly.
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let p = poly::<S, 6>(r, [0.5, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_199_9e-3, 1.987_569_1e-4]);
        let e = S::add(S::fma(S::mul(p, r), r, r), S::splat(1.0));
        S::mul(e, S::exp2i(n))
    }
}

/// erf within 4 ulp of 1: an odd rational function on [−4, 4], beyond which it stays within an ulp of ±1.
#[inline(always)]
pub(crate) unsafe fn erf<S: Lanes>(x: S::V) -> S::V {
    unsafe {
        let x = clamp::<S>(x, -4.0, 4.0);
        let x2 = S::mul(x, x);
        let p = poly::<S, 7>(
            x2,
            [
                -1.609_603_3e-2,
                -2.954_599_8e-3,
                -7.349_906_3e-4,
                -5.692_506_4e-5,
                -2.101_024e-6,
                2.770_681_4e-8,
                -2.726_142_3e-10,
            ],
        );
        let q = poly::<S, 5>(x2, [-1.426_473_9e-2, -7.373_329e-3, -1.682_827e-3, -2.133_740_6e-4, -1.456_607_2e-5]);
        S::quotient(S::mul(x, p), q)
    }
}

/// tanh within 4 ulp of 1: an odd rational function on the range where f32 can tell it from ±1.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes>(x: S::V) -> S::V {
    unsafe {
        let x = clamp::<S>(x, -7.905_311, 7.905_311);
        let x2 = S::mul(x, x);
        let p = poly::<S, 7>(
            x2,
            [
                4.893_524_6e-3,
                6.372_619_3e-4,
                1.485_722_4e-5,
                5.122_297e-8,
                -8.604_671_5e-11,
                2.000_187_9e-13,
                -2.760_768_5e-16,
            ],
        );
        let q = poly::<S, 4>(x2, [4.893_525e-3, 2.268_434_6e-3, 1.185_347_1e-4, 1.198_258_4e-6]);
        S::quotient(S::mul(x, p), q)
    }
}

/// x·σ(slope·x) with σ the logistic function.
#[inline(always)]
unsafe fn swish<S: Lanes>(x: S::V, slope: f32) -> S::V {
    unsafe {
        let e = exp::<S>(S::mul(S::splat(-slope), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// The activation that an op fuses.
#[inline(always)]
pub(crate) unsafe fn activate<S: Lanes>(activation: Activation, x: S::V) -> S::V {
    unsafe {
        match activation {
            Activation::None => x,
            Activation::Gelu => {
                // Below −6 the answer is 0 to within 1e-8, but erf is an ulp short of −1, and x would multiply that.
                let x = S::max(S::splat(-6.0), x);
                let half = S::mul(x, S::splat(0.5));
                S::fma(half, erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2))), half)
            }
            Activation::GeluTanh => {
                let x = S::max(S::splat(-6.0), x);
                let half = S::mul(x, S::splat(0.5));
                let x3 = S::mul(S::mul(x, x), x);
                let inner = S::mul(S::splat(0.797_884_6), S::fma(x3, S::splat(0.044_715), x));
                S::fma(half, tanh::<S>(inner), half)
            }
            Activation::Relu => S::max(S::splat(0.0), x),
            Activation::QuickGelu => swish::<S>(x, 1.702),
            Activation::Silu => swish::<S>(x, 1.0),
            Activation::Sigmoid => {
                let e = exp::<S>(S::sub(S::splat(0.0), x));
                S::div(S::splat(1.0), S::add(S::splat(1.0), e))
            }
            Activation::Tanh => tanh::<S>(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Isa, Kernel};

    type Reference = fn(f64) -> f64;

    struct Sweep<'a> {
        function: usize,
        xs: &'a [f32],
        ys: &'a mut [f32],
    }
    impl Kernel for Sweep<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Lanes>(self) {
            for (x, y) in self.xs.chunks_exact(S::WIDTH).zip(self.ys.chunks_exact_mut(S::WIDTH)) {
                unsafe {
                    let x = S::load(x.as_ptr());
                    let v = match self.function {
                        0 => exp::<S>(x),
                        1 => erf::<S>(x),
                        _ => tanh::<S>(x),
                    };
                    S::store(y.as_mut_ptr(), v);
                }
            }
        }
    }

    struct Far<'a>(&'a mut Vec<f32>);
    impl Kernel for Far<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Lanes>(self) {
            let mut lanes = [0f32; 16];
            for (activation, x) in [
                (Activation::Gelu, -1e4),
                (Activation::GeluTanh, -1e4),
                (Activation::Tanh, 1e4),
                (Activation::Tanh, -f32::INFINITY),
                (Activation::Gelu, 1e4),
            ] {
                unsafe { S::store(lanes.as_mut_ptr(), activate::<S>(activation, S::splat(x))) };
                self.0.push(lanes[0]);
            }
        }
    }

    #[test]
    fn far_from_zero_the_limits_are_kept() {
        for isa in Isa::all() {
            let mut seen = Vec::new();
            isa.run(Far(&mut seen));
            for (got, want) in seen.iter().zip([0.0, 0.0, 1.0, -1.0, 1e4]) {
                assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{isa}: {seen:?}");
            }
        }
    }

    struct Broken<'a>(&'a mut Vec<f32>);
    impl Kernel for Broken<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Lanes>(self) {
            let all = [
                Activation::None,
                Activation::Gelu,
                Activation::GeluTanh,
                Activation::Relu,
                Activation::Silu,
                Activation::Tanh,
            ];
            let mut lanes = [0f32; 16];
            unsafe {
                let (nan, one) = (S::splat(f32::NAN), S::splat(1.0));
                for activation in all {
                    S::store(lanes.as_mut_ptr(), activate::<S>(activation, nan));
                    self.0.push(lanes[0]);
                }
                for (a, b) in [(nan, one), (one, nan)] {
                    S::store(lanes.as_mut_ptr(), larger::<S>(a, b));
                    self.0.push(lanes[0]);
                }
                S::store(lanes.as_mut_ptr(), exp::<S>(nan));
                self.0.push(lanes[0]);
            }
        }
    }

    #[test]
    fn nan_is_never_turned_into_a_number() {
        for isa in Isa::all() {
            let mut seen = Vec::new();
            isa.run(Broken(&mut seen));
            assert!(seen.len() == 9 && seen.iter().all(|v| v.is_nan()), "{isa}: {seen:?}");
        }
    }

    /// The error in units of the last place of `scale(reference)`.
    #[test]
    fn errors_stay_within_the_ulp_that_the_comments_state() {
        let cases: [(Reference, f32, f64, Reference); 3] =
            [(f64::exp, 87.0, 2.0, |y| y), (libm::erf, 6.0, 4.0, |_| 1.0), (f64::tanh, 12.0, 4.0, |_| 1.0)];
        for isa in Isa::all() {
            for (function, (reference, reach, ulps, scale)) in cases.iter().enumerate() {
                let n = 160_000;
                let xs: Vec<f32> = (0..n).map(|i| (i as f32 / (n - 1) as f32 * 2.0 - 1.0) * reach).collect();
                let mut ys = vec![0.0; n];
                isa.run(Sweep { function, xs: &xs, ys: &mut ys });
                let worst = xs
                    .iter()
                    .zip(&ys)
                    .map(|(x, y)| {
                        let want = reference(f64::from(*x));
                        let ulp = scale(want) * f64::from(f32::EPSILON);
                        (f64::from(*y) - want).abs() / ulp
                    })
                    .fold(0.0, f64::max);
                assert!(worst <= *ulps, "{isa} function {function}: {worst:.2} ulp, stated {ulps}");
            }
        }
    }
}
