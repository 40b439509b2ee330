//! exp, erf, tanh and the activation functions over SIMD lanes. The tests below measure errors
//! against libm in f64.
//!
//! All functions take several vectors and interleave their steps: each step waits four cycles for
//! the one before, and the out-of-order window is too short to fill that gap by itself.
#![allow(unsafe_code, reason = "SIMD lanes")]
#![allow(clippy::excessive_precision, reason = "coefficients in full precision, which the compiler rounds to f32")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the contract of Lanes is the reason for every block")]

use super::Lanes;
use crate::{Activation, DType};

/// Evaluates the expression for each vector.
macro_rules! each {
    ($N:ident, |$i:ident| $value:expr) => {{
        let first = {
            let $i = 0;
            $value
        };
        let mut y = [first; $N];
        let mut $i = 1;
        while $i < $N {
            y[$i] = $value;
            $i += 1;
        }
        y
    }};
}

/// c₀ + c₁x + c₂x² + …, by Horner's method.
#[inline(always)]
unsafe fn poly<S: Lanes, const N: usize, const C: usize>(x: [S::V; N], c: [f32; C]) -> [S::V; N] {
    unsafe {
        let mut y = [S::splat(c[C - 1]); N];
        for c in c[..C - 1].iter().rev() {
            y = each!(N, |i| S::fma(y[i], x[i], S::splat(*c)));
        }
        y
    }
}

/// x clamped to `low..=high`; NaN stays NaN because it is the second operand each time.
#[inline(always)]
unsafe fn clamp<S: Lanes, const N: usize>(x: [S::V; N], low: f32, high: f32) -> [S::V; N] {
    unsafe { each!(N, |i| S::max(S::splat(low), S::min(S::splat(high), x[i]))) }
}

/// The larger, or NaN if either is NaN: a NaN must not get lost.
#[inline(always)]
pub(crate) unsafe fn larger<S: Lanes>(a: S::V, b: S::V) -> S::V {
    // `max` returns its second operand if one is NaN, so only a NaN in `a` could get lost. a − a is
    // 0, or NaN if `a` is NaN or infinite: an infinity becomes NaN, which is an invalid result too.
    unsafe { S::add(S::max(a, b), S::sub(a, a)) }
}

/// eˣ within 2 ulp; clamped to the smallest normal number below −87.3 and to the largest power of
/// two above 88.
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes, const N: usize>(x: [S::V; N]) -> [S::V; N] {
    unsafe {
        let x = clamp::<S, N>(x, -87.3, 88.0);
        // x = n·ln 2 + r with |r| ≤ ln 2 / 2; ln 2 in two parts, so that n·ln 2 is subtracted
        // exactly.
        let n = each!(N, |i| S::round(S::mul(x[i], S::splat(std::f32::consts::LOG2_E))));
        let r = each!(N, |i| S::fma(n[i], S::splat(-0.693_359_4), x[i]));
        let r = each!(N, |i| S::fma(n[i], S::splat(2.121_944_4e-4), r[i]));
        let p = poly::<S, N, 6>(r, [0.5, 1.666_666_5e-1, 4.166_579_6e-2, 8.333_452e-3, 1.398_199_9e-3, 1.987_569_1e-4]);
        let e = each!(N, |i| S::add(S::fma(S::mul(p[i], r[i]), r[i], r[i]), S::splat(1.0)));
        each!(N, |i| S::scale2(e[i], n[i]))
    }
}

/// 2ˣ with a relative error of 1e-5 for x ≤ 0, for results that are rounded to bf16 or f16; clamped
/// at 2⁻¹²⁵, because the processor takes a hundred times as long for subnormal numbers.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMX uses it"))]
pub(crate) unsafe fn short_exp2<S: Lanes, const N: usize>(x: [S::V; N]) -> [S::V; N] {
    unsafe {
        let x = each!(N, |i| S::max(S::splat(-125.0), x[i]));
        let n = each!(N, |i| S::round(x[i]));
        let r = each!(N, |i| S::sub(x[i], n[i]));
        let e = poly::<S, N, 5>(r, [0.999_999_29, 0.693_121_79, 0.240_247_44, 5.591_785_9e-2, 9.570_102_2e-3]);
        each!(N, |i| S::scale2(e[i], n[i]))
    }
}

/// erf within 4 ulp of 1: an odd rational function on [−4, 4], outside of which the result is
/// within an ulp of ±1.
#[inline(always)]
pub(crate) unsafe fn erf<S: Lanes, const N: usize>(x: [S::V; N]) -> [S::V; N] {
    unsafe {
        let x = clamp::<S, N>(x, -4.0, 4.0);
        let x2 = each!(N, |i| S::mul(x[i], x[i]));
        let p = poly::<S, N, 7>(
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
        let q = poly::<S, N, 5>(x2, [-1.426_473_9e-2, -7.373_329e-3, -1.682_827e-3, -2.133_740_6e-4, -1.456_607_2e-5]);
        each!(N, |i| S::quotient(S::mul(x[i], p[i]), q[i]))
    }
}

/// tanh within 4 ulp of 1: an odd rational function on the range where f32 distinguishes it from
/// ±1.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes, const N: usize>(x: [S::V; N]) -> [S::V; N] {
    unsafe {
        let x = clamp::<S, N>(x, -7.905_311, 7.905_311);
        let x2 = each!(N, |i| S::mul(x[i], x[i]));
        let p = poly::<S, N, 7>(
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
        let q = poly::<S, N, 4>(x2, [4.893_525e-3, 2.268_434_6e-3, 1.185_347_1e-4, 1.198_258_4e-6]);
        each!(N, |i| S::quotient(S::mul(x[i], p[i]), q[i]))
    }
}

/// (Φ(x) − ½) / x in powers of x²: with erf, and with the tanh approximation that some models use.
const SHORT_ERF: [f32; 8] = [
    3.984_658_7e-1,
    -6.552_819_9e-2,
    9.298_229_6e-3,
    -9.506_575_3e-4,
    6.689_070_1e-5,
    -3.037_931_9e-6,
    7.941_341_1e-8,
    -9.017_534_5e-10,
];
const SHORT_TANH: [f32; 8] = [
    3.984_942_4e-1,
    -6.587_929_3e-2,
    9.524_363_1e-3,
    -1.007_287_3e-3,
    7.414_186_3e-5,
    -3.544_179_7e-6,
    9.776_724_8e-8,
    -1.172_344_1e-9,
];

/// x·(½ + odd polynomial), which reaches ±½ at ±`end` and stays there: both forms of GELU within
/// 1e-4, for results that are rounded to bf16 or f16.
#[inline(always)]
unsafe fn short_gelu<S: Lanes, const N: usize>(x: [S::V; N], end: f32, c: [f32; 8]) -> [S::V; N] {
    unsafe {
        let x = each!(N, |i| S::max(S::splat(-end), x[i]));
        let clamped = each!(N, |i| S::min(S::splat(end), x[i]));
        let p = poly::<S, N, 8>(each!(N, |i| S::mul(clamped[i], clamped[i])), c);
        each!(N, |i| S::mul(x[i], S::fma(clamped[i], p[i], S::splat(0.5))))
    }
}

/// x·σ(slope·x) with σ the logistic function.
#[inline(always)]
unsafe fn swish<S: Lanes, const N: usize>(x: [S::V; N], slope: f32) -> [S::V; N] {
    unsafe {
        let e = exp::<S, N>(each!(N, |i| S::mul(S::splat(-slope), x[i])));
        each!(N, |i| S::div(x[i], S::add(S::splat(1.0), e[i])))
    }
}

/// The activation function of a fused op, as exact as the result type `to` needs.
#[inline(always)]
pub(crate) unsafe fn activate<S: Lanes, const N: usize>(activation: Activation, to: DType, x: [S::V; N]) -> [S::V; N] {
    unsafe {
        match (activation, to) {
            (Activation::None, _) => x,
            (Activation::Gelu, DType::BF16 | DType::F16) => short_gelu::<S, N>(x, 4.2, SHORT_ERF),
            (Activation::GeluTanh, DType::BF16 | DType::F16) => short_gelu::<S, N>(x, 4.1, SHORT_TANH),
            (Activation::Gelu, _) => {
                // Below −6 the result is 0 to within 1e-8, but erf is an ulp short of −1, and x
                // would multiply that.
                let x = each!(N, |i| S::max(S::splat(-6.0), x[i]));
                let half = each!(N, |i| S::mul(x[i], S::splat(0.5)));
                let e = erf::<S, N>(each!(N, |i| S::mul(x[i], S::splat(std::f32::consts::FRAC_1_SQRT_2))));
                each!(N, |i| S::fma(half[i], e[i], half[i]))
            }
            (Activation::GeluTanh, _) => {
                let x = each!(N, |i| S::max(S::splat(-6.0), x[i]));
                let half = each!(N, |i| S::mul(x[i], S::splat(0.5)));
                let x3 = each!(N, |i| S::mul(S::mul(x[i], x[i]), x[i]));
                let inner = each!(N, |i| S::mul(S::splat(0.797_884_6), S::fma(x3[i], S::splat(0.044_715), x[i])));
                let t = tanh::<S, N>(inner);
                each!(N, |i| S::fma(half[i], t[i], half[i]))
            }
            (Activation::Relu, _) => each!(N, |i| S::max(S::splat(0.0), x[i])),
            (Activation::QuickGelu, _) => swish::<S, N>(x, 1.702),
            (Activation::Silu, _) => swish::<S, N>(x, 1.0),
            (Activation::Sigmoid, _) => {
                let e = exp::<S, N>(each!(N, |i| S::sub(S::splat(0.0), x[i])));
                each!(N, |i| S::div(S::splat(1.0), S::add(S::splat(1.0), e[i])))
            }
            (Activation::Tanh, _) => tanh::<S, N>(x),
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
        const BF16: bool = false;
        #[inline(always)]
        fn run<S: Lanes>(self) {
            for (x, y) in self.xs.chunks_exact(S::WIDTH).zip(self.ys.chunks_exact_mut(S::WIDTH)) {
                unsafe {
                    let x = [S::load(x.as_ptr())];
                    let [v] = match self.function {
                        0 => exp::<S, 1>(x),
                        1 => erf::<S, 1>(x),
                        2 => tanh::<S, 1>(x),
                        3 => short_exp2::<S, 1>([S::min(x[0], S::sub(S::splat(0.0), x[0]))]),
                        4 => activate::<S, 1>(Activation::Gelu, DType::BF16, x),
                        _ => activate::<S, 1>(Activation::GeluTanh, DType::F16, x),
                    };
                    S::store(y.as_mut_ptr(), v);
                }
            }
        }
    }

    struct Far<'a>(&'a mut Vec<f32>);
    impl Kernel for Far<'_> {
        type Output = ();
        const BF16: bool = false;
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
                for to in [DType::F32, DType::BF16] {
                    let [y] = unsafe { activate::<S, 1>(activation, to, [S::splat(x)]) };
                    unsafe { S::store(lanes.as_mut_ptr(), y) };
                    self.0.push(lanes[0]);
                }
            }
        }
    }

    #[test]
    fn activations_reach_their_limits_far_from_zero() {
        for isa in Isa::all() {
            let mut results = Vec::new();
            isa.run(Far(&mut results));
            for (pair, want) in results.chunks_exact(2).zip([0.0, 0.0, 1.0, -1.0, 1e4]) {
                let [got, short] = pair else { unreachable!() };
                assert!((short - want).abs() <= 1e-4 * want.abs().max(1.0), "{isa}: {results:?}");
                assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{isa}: {results:?}");
            }
        }
    }

    struct Broken<'a>(&'a mut Vec<f32>);
    impl Kernel for Broken<'_> {
        type Output = ();
        const BF16: bool = false;
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
                for (activation, to) in all.iter().flat_map(|a| [(*a, DType::F32), (*a, DType::BF16)]) {
                    let [y] = activate::<S, 1>(activation, to, [nan]);
                    S::store(lanes.as_mut_ptr(), y);
                    self.0.push(lanes[0]);
                }
                for (a, b) in [(nan, one), (one, nan)] {
                    S::store(lanes.as_mut_ptr(), larger::<S>(a, b));
                    self.0.push(lanes[0]);
                }
                for [y] in [exp::<S, 1>([nan]), short_exp2::<S, 1>([nan])] {
                    S::store(lanes.as_mut_ptr(), y);
                    self.0.push(lanes[0]);
                }
            }
        }
    }

    #[test]
    fn nan_propagates_through_every_function() {
        for isa in Isa::all() {
            let mut results = Vec::new();
            isa.run(Broken(&mut results));
            assert!(results.len() == 16 && results.iter().all(|v| v.is_nan()), "{isa}: {results:?}");
        }
    }

    /// The error in units of the last place of `scale(reference)`.
    #[test]
    fn errors_stay_within_the_stated_ulp() {
        const ULP: f64 = f32::EPSILON as f64;
        let gelu: Reference = |x| x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let gelu_tanh: Reference = |x| x * 0.5 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh());
        let cases: [(Reference, f32, f64, Reference); 6] = [
            (f64::exp, 87.0, 2.0, |y| y),
            (libm::erf, 6.0, 4.0, |_| 1.0),
            (f64::tanh, 12.0, 4.0, |_| 1.0),
            (|x| (-x.abs()).exp2(), 125.0, 1e-5 / ULP, |y| y),
            (gelu, 12.0, 1e-4 / ULP, |y| y.abs().max(1.0)),
            (gelu_tanh, 12.0, 1e-4 / ULP, |y| y.abs().max(1.0)),
        ];
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
