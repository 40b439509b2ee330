//! Tolerances of models in bf16 and f16 against their reference.

/// The tolerance for the rows (hidden states or embeddings) of a model in half precision.
///
/// Errors are counted in roundings of the format (2⁻⁸ and 2⁻¹¹) per square root of the number of
/// layers: a layer rounds about ten times, its weights once, and errors add up like steps in random
/// directions. Counted this way, a correct model has the same error in bf16 and in f16; a model
/// with a missing or wrong term does not.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// The format's unit roundoff.
    pub unit: f64,
    /// The number of layers before the rows, counting embeddings and head.
    pub layers: usize,
    /// The largest median error, checked if there are enough rows for a median, and the largest
    /// error.
    pub roundings: [f64; 2],
    /// The fraction of rows without a bound: where rounding routes a token to another expert, its
    /// row differs entirely from there on.
    pub strays: f64,
}

/// The fewest rows that have a meaningful median.
const MIN_ROWS_FOR_MEDIAN: usize = 16;

impl Half {
    /// Asserts that rows of `width` elements are within tolerance of the reference, each relative
    /// to its norm.
    pub fn assert_close(&self, what: &str, got: &[f32], want: &[f32], width: usize) {
        assert_eq!(got.len(), want.len(), "{what}");
        assert!(got.iter().all(|v| v.is_finite()), "{what}: not finite");
        let rounding = self.unit * (self.layers as f64).sqrt();
        let mut errors: Vec<f64> =
            got.chunks(width).zip(want.chunks(width)).map(|(a, b)| relative_distance(a, b) / rounding).collect();
        errors.sort_by(f64::total_cmp);
        let strays = (errors.len() as f64 * self.strays).ceil() as usize;
        let median = if errors.len() < MIN_ROWS_FOR_MEDIAN { 0.0 } else { errors[errors.len() / 2] };
        let worst = errors[..errors.len() - strays].last().copied().unwrap_or(0.0);
        let message = format!("{what}: median error {median:.2}, largest {worst:.2} roundings");
        println!("{message}");
        assert!(median <= self.roundings[0] && worst <= self.roundings[1], "{message}");
    }
}

/// Relative distance: ‖a − b‖ / ‖b‖.
pub fn relative_distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn rounded_rows_pass_and_wrong_rows_fail() {
    let want: Vec<f32> = (0..320).map(|i| (i as f32 * 0.37).sin()).collect();
    let half = Half { unit: 1.0 / 256.0, layers: 1, roundings: [2.0, 8.0], strays: 0.0 };
    let passes =
        |half: Half, got: &[f32]| std::panic::catch_unwind(|| half.assert_close("rows", got, &want, 10)).is_ok();
    let rounded: Vec<f32> = want.iter().map(|v| v * (1.0 + 1.0 / 256.0)).collect();
    assert!(passes(half, &rounded));
    // One wrong row; all rows slightly wrong; a NaN.
    let mut one = rounded.clone();
    one[..10].iter_mut().for_each(|v| *v *= 1.05);
    assert!(!passes(half, &one) && passes(Half { strays: 0.01, ..half }, &one));
    assert!(!passes(half, &want.iter().map(|v| v * 1.01).collect::<Vec<_>>()));
    assert!(!passes(half, &[&[f32::NAN], &rounded[1..]].concat()));
}
