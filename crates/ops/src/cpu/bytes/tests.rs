//! Tests every instruction set against plain integer sums.

use super::codes::{MAX_CREST, REMAINDER_STEPS, quantize_remainder};
use super::*;
use sconce_testkit::Rng;
use std::borrow::Cow;
use std::sync::Mutex;

/// Sink that stores the sums unchanged.
struct Plain<'a>(&'a Mutex<Vec<f32>>, usize);

impl Sink for Plain<'_> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.1 - column);
        self.0.lock().unwrap()[row * self.1 + column..][..columns].copy_from_slice(&sums[..columns]);
    }
}

/// Pseudo-random values in −1..1, and rows of extremes only, where an overflow would show.
fn values(seed: u64, rows: usize, k: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let mut all: Vec<f32> = (0..rows * k).map(|_| rng.unit_f32()).collect();
    for (row, values) in all.chunks_exact_mut(k).enumerate() {
        match row % 4 {
            1 => values.fill(0.75),
            2 => values.fill(-0.75),
            3 => values[k / 2] = 20.0,
            _ => {}
        }
    }
    all
}

fn product(isa: Isa, (m, k, n): (usize, usize, usize), x: &[f32], w: &[f32]) -> Vec<f32> {
    let w = Bytes::pack(n, k, &|i, out| out.copy_from_slice(&w[i * k..][..k]), &|| ());
    let mut codes = Codes::default();
    // Leave stale data from another call.
    codes.fill(isa, (m + 1, k + 70), &|_| Cow::Owned(vec![1.0; k + 70]));
    codes.fill(isa, (m, k), &|i| Cow::Borrowed(&x[i * k..][..k]));
    let out = Mutex::new(vec![f32::NAN; m * n]);
    let half = m / 2 * 2;
    for (rows, panels) in [(0..half, 0..1), (0..half, 1..usize::MAX), (half..usize::MAX, 0..usize::MAX)] {
        let mut sums = Vec::new();
        isa.run_ints(Task { isa, x: &codes, w: &w, rows, panels, sums: &mut sums, sink: Plain(&out, n) });
    }
    out.into_inner().unwrap()
}

#[test]
fn every_instruction_set_equals_integer_sums() {
    for size @ (m, k, n) in [(1, 1, 1), (2, 5, 31), (3, 70, 33), (19, 64, 32), (70, 1600, 65), (37, 130, 100)] {
        let (x, w) = (values(1, m, k), values(2, n, k));
        let codes = |values: &[f32]| {
            let mut codes = vec![0i8; k];
            let sum = quantize(values, largest(values), &mut codes);
            assert_eq!(sum, codes.iter().map(|c| i32::from(*c)).sum::<i32>());
            (codes, largest(values) / 127.0)
        };
        let rest = |values: &[f32]| {
            let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / k as f64;
            (f64::from(largest(values)) > f64::from(MAX_CREST) * square.sqrt()).then(|| {
                let mut codes = vec![0i8; k];
                quantize_remainder(values, largest(values), &mut codes);
                (codes, largest(values) / 127.0 / REMAINDER_STEPS)
            })
        };
        let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>();
        let part = |(a, s): &(Vec<i8>, f32), (b, t): &(Vec<i8>, f32)| dot(a, b) as f32 * (s * t);
        let b: Vec<_> = w.chunks(k).map(codes).collect();
        let mut in_two_parts = 0;
        let mut want = Vec::new();
        for x in x.chunks(k) {
            let (first, rest) = (codes(x), rest(x));
            in_two_parts += usize::from(rest.is_some());
            want.extend(b.iter().map(|b| rest.as_ref().map_or(0.0, |rest| part(rest, b)) + part(&first, b)));
        }
        assert_eq!(in_two_parts > 0, m > 3 && k >= 64, "{size:?}");
        for isa in Isa::all() {
            assert_eq!(product(isa, size, &x, &w), want, "{isa} {size:?}");
        }
    }
}

/// A row with one large element among small ones, which a single row of codes would round away.
#[test]
fn small_elements_beside_an_outlier_keep_precision() {
    let k = 384;
    let mut x = values(5, 1, k);
    x[17] = 100.0;
    let mut w = values(6, 1, k);
    // Integers, so that all of the error is in x, and the large element has none.
    w.iter_mut().for_each(|w| *w = (*w * 126.0).round());
    (w[17], w[18]) = (0.0, 127.0);
    let want = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    for isa in Isa::all() {
        let off = (f64::from(product(isa, (1, k, 1), &x, &w)[0]) - want).abs();
        // The step is 100 / 127 / 254; each of 384 products has a random error of up to half a step
        // times a weight of about 70.
        assert!(off < 4.0 * 0.29 * 100.0 / 127.0 / 254.0 * 70.0 * (k as f64).sqrt(), "{isa}: {off}");
    }
}

#[test]
fn int8_codes_round_to_nearest_and_nan_propagates() {
    let x = values(3, 3, 100);
    let mut codes = vec![0; 100];
    let scale = largest(&x[..100]) / 127.0;
    quantize(&x[..100], largest(&x[..100]), &mut codes);
    let off = x.iter().zip(&codes).map(|(x, c)| (x - f32::from(*c) * scale).abs()).fold(0.0, f32::max);
    assert!(off <= 0.5001 * scale, "{off} of steps of {scale}");
    quantize(&[-2.0, 2.0, 0.0, -0.0], 2.0, &mut codes[..4]);
    assert_eq!(codes[..4], [-127, 127, 0, 0]);
    assert_eq!((largest(&[0.0; 4]), quantize(&[0.0; 4], 0.0, &mut codes[..4])), (0.0, 0));
    for isa in Isa::all() {
        let y = product(isa, (1, 4, 2), &[1.0, f32::NAN, 0.0, 2.0], &[0.5; 8]);
        assert!(y.iter().all(|v| v.is_nan()), "{isa} {y:?}");
    }
}

#[test]
fn column_dequantizes_within_half_a_step() {
    let w = values(4, 40, 70);
    let packed = Bytes::pack(40, 70, &|i, out| out.copy_from_slice(&w[i * 70..][..70]), &|| ());
    let mut column = vec![0.0; 70];
    for (i, want) in w.chunks(70).enumerate() {
        packed.column(i, &mut column);
        let off = column.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(off <= 0.5001 * largest / 127.0, "column {i} is off by {off}");
    }
    let size = packed.lines.len() * LINE + packed.scales.len() * size_of::<f32>();
    assert_eq!(Bytes::size_of(40, 70), size);
}
