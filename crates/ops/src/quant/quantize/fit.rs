//! Scales for which rounded codes come nearest to what they stand for, by least squares.
//!
//! Given codes, the best scale is a regression; given a scale, the best codes are the nearest ones. A search takes a few
//! first scales, from ranges somewhat wider and narrower than the elements span, and goes both steps from each of them. Many
//! parts are searched side by side, each in a lane of its own: loops over arrays of lanes become vectors of whatever
//! instruction set there is, and give the same on every one.

/// A number for each part.
pub(super) type Each<const L: usize> = [f32; L];

/// `N` elements of each of `L` parts.
pub(super) type Parts<const N: usize, const L: usize> = [Each<L>; N];

/// A block's parts, which follow each other in `x`, side by side.
#[inline(always)]
pub(super) fn side_by_side<const N: usize, const L: usize>(x: &[f32; 256]) -> Parts<N, L> {
    let mut parts = [[0.0; L]; N];
    for (l, part) in x.chunks_exact(N).enumerate() {
        for (out, x) in parts.iter_mut().zip(part) {
            out[l] = *x;
        }
    }
    parts
}

/// The nearest whole number.
#[inline(always)]
pub(super) fn whole(x: f32) -> f32 {
    // Leaves no room for a fraction.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Within `low..=high`; `low` for what is no number, on which `clamp` would not do.
#[inline(always)]
pub(super) fn within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// The reciprocal, 0 for what has none.
#[inline(always)]
pub(super) fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.abs() < f32::INFINITY { inverse } else { 0.0 }
}

#[inline(always)]
fn inverses<const L: usize>(mut x: Each<L>) -> Each<L> {
    for x in &mut x {
        *x = inverse(*x);
    }
    x
}

/// The least and the greatest element of each part, and 0.
#[inline(always)]
fn range<const N: usize, const L: usize>(x: &Parts<N, L>) -> (Each<L>, Each<L>) {
    let (mut low, mut high) = ([0.0; L], [0.0; L]);
    for x in x {
        for l in 0..L {
            low[l] = if x[l] < low[l] { x[l] } else { low[l] };
            high[l] = if x[l] > high[l] { x[l] } else { high[l] };
        }
    }
    (low, high)
}

/// The element of largest size of each part, with its sign.
#[inline(always)]
fn extremes<const N: usize, const L: usize>(x: &Parts<N, L>) -> Each<L> {
    let (low, mut high) = range(x);
    for l in 0..L {
        high[l] = if high[l] > -low[l] { high[l] } else { low[l] };
    }
    high
}

/// What codes there are: whole numbers in `low..=top`.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    pub(super) low: f32,
    pub(super) top: f32,
}

/// How well s · q − m stands for each part, with the nearest codes q.
pub(super) struct Fit<const L: usize> {
    /// Σ (x − s · q + m)²
    pub(super) error: Each<L>,
    /// Σ q
    pub(super) q: Each<L>,
    qq: Each<L>,
    xq: Each<L>,
}

impl Codes {
    /// 0..=top
    pub(super) fn up_to(top: f32) -> Codes {
        Codes { low: 0.0, top }
    }

    /// −half..half
    pub(super) fn around(half: f32) -> Codes {
        Codes { low: -half, top: half - 1.0 }
    }

    /// The nearest one.
    #[inline(always)]
    pub(super) fn nearest(self, x: f32) -> f32 {
        whole(within(x, self.low, self.top))
    }

    #[inline(always)]
    pub(super) fn fit<const N: usize, const L: usize>(self, x: &Parts<N, L>, s: &Each<L>, m: &Each<L>) -> Fit<L> {
        let over = inverses(*s);
        let mut fit = Fit { error: [0.0; L], q: [0.0; L], qq: [0.0; L], xq: [0.0; L] };
        for x in x {
            for l in 0..L {
                let q = self.nearest((x[l] + m[l]) * over[l]);
                let off = x[l] - (s[l] * q - m[l]);
                fit.error[l] += off * off;
                fit.q[l] += q;
                fit.qq[l] += q * q;
                fit.xq[l] += x[l] * q;
            }
        }
        fit
    }
}

/// The best of some tries for each part.
struct Best<const L: usize> {
    error: Each<L>,
    s: Each<L>,
    m: Each<L>,
}

impl<const L: usize> Best<L> {
    #[inline(always)]
    fn offer(&mut self, error: &Each<L>, s: &Each<L>, m: &Each<L>) {
        for l in 0..L {
            let better = error[l] < self.error[l];
            self.s[l] = if better { s[l] } else { self.s[l] };
            self.m[l] = if better { m[l] } else { self.m[l] };
            self.error[l] = if better { error[l] } else { self.error[l] };
        }
    }
}

/// s ≥ 0 and m ≥ 0 for which s · q − m comes nearest to each part, with codes q from 0 up.
#[inline(always)]
pub(super) fn affine<const N: usize, const L: usize>(x: &Parts<N, L>, codes: Codes) -> (Each<L>, Each<L>) {
    let (low, high) = range(x);
    let mut all = [0.0; L];
    for x in x {
        for l in 0..L {
            all[l] += x[l];
        }
    }
    let mut best = Best { error: [f32::INFINITY; L], s: [0.0; L], m: [0.0; L] };
    for i in 0..6 {
        // Narrower ranges cut off the extremes for the good of the rest: half on each side, where both are free.
        let cut = 0.04 * i as f32;
        let (mut s, mut m) = ([0.0; L], [0.0; L]);
        for l in 0..L {
            let span = high[l] - low[l];
            s[l] = span * (1.0 - cut) / codes.top;
            m[l] = if low[l] < 0.0 { -low[l] - span * cut / 2.0 } else { 0.0 };
            m[l] = if m[l] > 0.0 { m[l] } else { 0.0 };
        }
        for round in 0..3 {
            let fit = codes.fit(x, &s, &m);
            best.offer(&fit.error, &s, &m);
            if round == 2 {
                break;
            }
            for l in 0..L {
                let n = N as f32;
                let spread = n * fit.qq[l] - fit.q[l] * fit.q[l];
                let slope = (n * fit.xq[l] - fit.q[l] * all[l]) * inverse(spread);
                let least = (slope * fit.q[l] - all[l]) / n;
                // Through 0 where the line would have to start above it.
                let through = fit.xq[l] * inverse(fit.qq[l]);
                s[l] = if least > 0.0 { slope } else { through };
                m[l] = if least > 0.0 { least } else { 0.0 };
            }
        }
    }
    (best.s, best.m)
}

/// s, of any sign, for which s · q comes nearest to each part, with codes q around 0.
#[inline(always)]
pub(super) fn centred<const N: usize, const L: usize>(x: &Parts<N, L>, codes: Codes) -> Each<L> {
    let extremes = extremes(x);
    let zero = [0.0; L];
    let mut best = Best { error: [f32::INFINITY; L], s: zero, m: zero };
    for i in -4..=4 {
        let mut s = extremes;
        for s in &mut s {
            *s /= codes.low - 0.15 * i as f32;
        }
        for _ in 0..2 {
            let fit = codes.fit(x, &s, &zero);
            best.offer(&fit.error, &s, &zero);
            for (s, (xq, qq)) in s.iter_mut().zip(fit.xq.iter().zip(&fit.qq)) {
                *s = xq * inverse(*qq);
            }
        }
        best.offer(&codes.fit(x, &s, &zero).error, &s, &zero);
    }
    best.s
}

/// The nearest of `steps`, which ascend: every middle that `x` lies above takes it a gap further. And its place.
#[inline(always)]
pub(super) fn snapped<const L: usize>(x: &Each<L>, steps: &[i8; 16]) -> (Each<L>, [i32; L]) {
    let (mut q, mut places) = ([f32::from(steps[0]); L], [0; L]);
    for pair in steps.windows(2) {
        let (from, to) = (f32::from(pair[0]), f32::from(pair[1]));
        for l in 0..L {
            let above = x[l] > (from + to) / 2.0;
            q[l] += if above { to - from } else { 0.0 };
            places[l] += i32::from(above);
        }
    }
    (q, places)
}

/// d for which d · steps[q] comes nearest to each part.
#[inline(always)]
pub(super) fn stepped<const N: usize, const L: usize>(x: &Parts<N, L>, steps: &[i8; 16]) -> Each<L> {
    let extremes = extremes(x);
    let mut best = Best { error: [f32::INFINITY; L], s: [0.0; L], m: [0.0; L] };
    for end in [steps[0], steps[15]] {
        for i in -2..=4 {
            let mut over = inverses(extremes);
            for over in &mut over {
                *over *= f32::from(end) * (1.0 + 0.03 * i as f32);
            }
            for _ in 0..2 {
                let (mut qq, mut xq) = ([0.0; L], [0.0; L]);
                for x in x {
                    let mut scaled = *x;
                    for l in 0..L {
                        scaled[l] *= over[l];
                    }
                    let (q, _) = snapped(&scaled, steps);
                    for l in 0..L {
                        qq[l] += q[l] * q[l];
                        xq[l] += x[l] * q[l];
                    }
                }
                // The best d for these codes takes xq² / qq off Σ x².
                let (mut left, mut d) = ([0.0; L], [0.0; L]);
                for l in 0..L {
                    d[l] = xq[l] * inverse(qq[l]);
                    left[l] = -xq[l] * d[l];
                }
                best.offer(&left, &d, &d);
                over = inverses(d);
            }
        }
    }
    best.s
}
