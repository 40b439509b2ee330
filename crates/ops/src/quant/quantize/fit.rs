//! Searches for the scales that minimize the squared error of quantization.
//!
//! Given codes, the best scale is a regression; given a scale, the best codes are the nearest ones.
//! Each search tries a few initial scales, from ranges somewhat wider and narrower than that of the
//! elements, and does both steps from each of them.

/// Sums in eight lanes, in a fixed order, so that they vectorize and are the same on every
/// instruction set.
#[inline(always)]
fn sum<const N: usize>(x: &[f32; N]) -> f32 {
    let mut lanes = [0.0; 8];
    for eight in x.as_chunks::<8>().0 {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane += x;
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The minimum and the maximum of the elements and 0.
#[inline(always)]
pub(super) fn range<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([0.0; 8], [0.0; 8]);
    for eight in x.as_chunks::<8>().0 {
        // Comparisons instead of `min` and `max`, which handle NaN and take three instructions for
        // it.
        for i in 0..8 {
            low[i] = if eight[i] < low[i] { eight[i] } else { low[i] };
            high[i] = if eight[i] > high[i] { eight[i] } else { high[i] };
        }
    }
    let (mut least, mut most) = (0.0, 0.0);
    for i in 0..8 {
        least = if low[i] < least { low[i] } else { least };
        most = if high[i] > most { high[i] } else { most };
    }
    (least, most)
}

/// The element of largest absolute value, with its sign.
#[inline(always)]
fn extreme<const N: usize>(x: &[f32; N]) -> f32 {
    let (low, high) = range(x);
    if high > -low { high } else { low }
}

#[inline(always)]
fn dot<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f32 {
    let mut products = *a;
    for (a, b) in products.iter_mut().zip(b) {
        *a *= b;
    }
    sum(&products)
}

/// Each element times `scale`, plus `offset`, rounded to the nearest integer in `low..=high`.
#[inline(always)]
pub(super) fn rounded<const N: usize>(x: &[f32; N], scale: f32, offset: f32, low: f32, high: f32) -> [f32; N] {
    // Adding and subtracting it rounds the fraction away.
    const SHIFT: f32 = 12_582_912.0;
    let mut q = *x;
    for q in &mut q {
        // Not `clamp`, which panics on NaN.
        let v = *q * scale + offset;
        let v = if v > low { v } else { low };
        *q = ((if v < high { v } else { high }) + SHIFT) - SHIFT;
    }
    q
}

/// Σ (x − s · q + m)².
#[inline(always)]
pub(super) fn error<const N: usize>(x: &[f32; N], q: &[f32; N], s: f32, m: f32) -> f32 {
    let mut differences = *x;
    for (x, q) in differences.iter_mut().zip(q) {
        *x = (*x - (s * q - m)) * (*x - (s * q - m));
    }
    sum(&differences)
}

/// The nearest integer, without a library call on instruction sets that lack the instruction.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The reciprocal, or 0 if there is none.
#[inline(always)]
pub(super) fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The s ≥ 0 and m ≥ 0 that minimize the error of s · q − m with q in 0..=top.
#[inline(always)]
pub(super) fn affine<const N: usize>(x: &[f32; N], top: f32) -> (f32, f32) {
    let (low, high) = range(x);
    let all = sum(x);
    let mut best = (f32::INFINITY, 0.0, -low);
    for i in 0..TRIES {
        // Narrower ranges clip the extremes in favour of the rest.
        let span = (high - low) * (1.0 - CUT * i as f32);
        let (mut s, mut m) = (span / top, -low);
        if i > 0 {
            // Clip half on each side; a minimum of 0 stays.
            m = if low < 0.0 { m - (high - low - span) / 2.0 } else { 0.0 };
        }
        for _ in 0..2 {
            let q = rounded(x, inverse(s), m * inverse(s), 0.0, top);
            let (q1, q2, xq) = (sum(&q), dot(&q, &q), dot(x, &q));
            let n = N as f32;
            s = (n * xq - q1 * all) * inverse(n * q2 - q1 * q1);
            m = (s * q1 - all) / n;
            if m < 0.0 {
                (s, m) = (xq * inverse(q2), 0.0);
            }
            if s <= 0.0 {
                break;
            }
            let error = error(x, &q, s, m);
            if error < best.0 {
                best = (error, s, m);
            }
        }
    }
    (best.1, best.2)
}

const TRIES: usize = 6;
const CUT: f32 = 0.04;

/// The s, of either sign, that minimizes the error of s · q with q in −half..half.
#[inline(always)]
pub(super) fn symmetric<const N: usize>(x: &[f32; N], half: f32) -> f32 {
    let extreme = extreme(x);
    let mut best = (0.0, 0.0);
    for i in -4..=4 {
        let mut over = -(half + 0.15 * i as f32) * inverse(extreme);
        for _ in 0..2 {
            let q = rounded(x, over, 0.0, -half, half - 1.0);
            let (q2, xq) = (dot(&q, &q), dot(x, &q));
            // How much the best scale for these codes reduces Σ x².
            let gain = xq * xq * inverse(q2);
            if gain > best.0 {
                best = (gain, xq * inverse(q2));
            }
            over = q2 * inverse(xq);
        }
    }
    best.1
}

/// The index of the nearest of `codebook` (ascending) for each element times `scale`.
#[inline(always)]
pub(super) fn nearest(x: &[f32; 32], scale: f32, codebook: &[i8; 16]) -> [u8; 32] {
    let mut places = [0; 32];
    for pair in codebook.windows(2) {
        let middle = (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
        for (place, x) in places.iter_mut().zip(x) {
            *place += u8::from(x * scale > middle);
        }
    }
    places
}

/// The nearest of `codebook` itself: starts at the first and adds a gap for every midpoint below
/// the element.
#[inline(always)]
fn nearest_values(x: &[f32; 32], scale: f32, codebook: &[i8; 16]) -> [f32; 32] {
    let (mut scaled, mut q) = (*x, [f32::from(codebook[0]); 32]);
    for x in &mut scaled {
        *x *= scale;
    }
    for pair in codebook.windows(2) {
        let (middle, gap) = ((f32::from(pair[0]) + f32::from(pair[1])) / 2.0, f32::from(pair[1]) - f32::from(pair[0]));
        for i in 0..32 {
            q[i] += if scaled[i] > middle { gap } else { 0.0 };
        }
    }
    q
}

/// The d that minimizes the error of d · codebook[q].
#[inline(always)]
pub(super) fn codebook_scale(x: &[f32; 32], codebook: &[i8; 16]) -> f32 {
    let extreme = extreme(x);
    let mut best = (0.0, 0.0);
    for end in [codebook[0], codebook[15]] {
        for i in -2..=4 {
            let mut over = f32::from(end) * (1.0 + 0.03 * i as f32) * inverse(extreme);
            for _ in 0..2 {
                let q = nearest_values(x, over, codebook);
                let (q2, xq) = (dot(&q, &q), dot(x, &q));
                let gain = xq * xq * inverse(q2);
                if gain > best.0 {
                    best = (gain, xq * inverse(q2));
                }
                over = q2 * inverse(xq);
            }
        }
    }
    best.1
}
