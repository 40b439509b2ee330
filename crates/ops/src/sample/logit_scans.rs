//! Passes over a vocabulary, written so that the compiler vectorizes them.
//!
//! Lanes are explicit, because the compiler may not reorder a sum of floats. The exponential is our
//! own, because the platform's is a function call per logit, and differs in the last bit between
//! platforms; a seed should give the same tokens on all of them.

/// Logits per vector.
const LANES: usize = 16;

/// Index of the first logit that is not finite.
pub fn not_finite(logits: &[f32]) -> Option<usize> {
    // The bits of |x| as an integer are in the order of |x|, infinity and NaN above all.
    let magnitude = |x: f32| (x.to_bits() & 0x7fff_ffff) as i32;
    let mut most = [0i32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (m, x) in most.iter_mut().zip(chunk) {
            *m = (*m).max(magnitude(*x));
        }
    }
    let most = most.into_iter().chain(rest.iter().map(|x| magnitude(*x))).max()?;
    if most < magnitude(f32::INFINITY) { None } else { logits.iter().position(|x| !x.is_finite()) }
}

/// The largest logit; -∞ if there is none. NaN is not allowed.
pub fn largest(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut most = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (m, x) in most.iter_mut().zip(chunk) {
            *m = larger(*x, *m);
        }
    }
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// Index of the largest logit, the first of equals, unless all are -∞. NaN is not allowed.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    let most = largest(logits);
    if most == f32::NEG_INFINITY {
        return None;
    }
    // Two passes without a branch are faster than one that tracks the index.
    let block = 1024;
    let at = logits.chunks(block).position(|c| c.iter().fold(false, |any, x| any | (*x == most)))? * block;
    logits[at..].iter().position(|x| *x == most).map(|i| (at + i) as u32)
}

/// Σ exp((x − best) / temperature), where no logit is above `best`.
pub fn sum_exp(logits: &[f32], best: f32, temperature: f32) -> f64 {
    let mut sum = 0.0;
    // Few enough are added in f32 that its rounding stays below that of the exponential.
    for part in logits.chunks(4 * LANES) {
        let mut lanes = [0f32; LANES];
        let (chunks, rest) = part.as_chunks::<LANES>();
        for chunk in chunks {
            for (sum, x) in lanes.iter_mut().zip(chunk) {
                *sum += exp((*x - best) / temperature);
            }
        }
        sum += lanes.into_iter().chain(rest.iter().map(|x| exp((*x - best) / temperature))).map(f64::from).sum::<f64>();
    }
    sum
}

/// e^x for x ≤ 0, to about two units in the last place; 0 below f32's normal numbers. No branch, no
/// call.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // e^x = 2^n · e^r with n = x / ln 2 rounded, |r| ≤ ln 2 / 2. Adding 1.5 · 2²³ rounds, and
    // leaves n in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first of so few bits that n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const LEAST: f32 = -87.3;
    let y = if x > LEAST { x } else { LEAST };
    let t = y * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = (y - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor: the first term left out is below 2⁻²⁷.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let power = f32::from_bits(t.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x > LEAST { p * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_error_is_within_two_unit_roundoffs() {
        let mut worst = 0f64;
        for i in 0..2_000_000 {
            let x = -87.3 * i as f32 / 2_000_000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON) / 2.0 * 1.01, "{worst:e}");
        assert_eq!([0.0, -87.4, -1e30, f32::NEG_INFINITY].map(exp), [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn logit_scans_cover_every_element() {
        for len in [0usize, 1, 15, 16, 17, 64, 1000, 1024, 2050] {
            let logits: Vec<f32> = (0..len).map(|i| -((i * 7919 % 1009) as f32) / 100.0 - 1.0).collect();
            assert_eq!(not_finite(&logits), None);
            for at in [0, len / 2, len.saturating_sub(1)] {
                if at >= len {
                    continue;
                }
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
                    let mut logits = logits.clone();
                    logits[at] = bad;
                    assert_eq!(not_finite(&logits), Some(at));
                }
                let mut logits = logits.clone();
                logits[at] = 1.0;
                assert_eq!((argmax(&logits), largest(&logits)), (Some(at as u32), 1.0));
                let exact: f64 = logits.iter().map(|x| (f64::from(*x - 1.0) / 0.7).exp()).sum();
                assert!((sum_exp(&logits, 1.0, 0.7) / exact - 1.0).abs() < 3e-7);
            }
        }
        // Of equals the first, in whichever chunk.
        let mut logits = vec![0.0; 3000];
        (logits[1500], logits[2900]) = (2.0, 2.0);
        assert_eq!(argmax(&logits), Some(1500));
        assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 5]), None);
    }
}
