//! How far a model in bf16 or f16 may be from its reference.

/// Where rows come from, and what is allowed them.
///
/// Errors are counted in roundings of the format (2⁻⁸ and 2⁻¹¹) for each root of a layer: a layer rounds about ten times, its weights
/// once, and errors add up like steps in random directions. What is right is as far off in bf16 as in f16 when it is counted so; a
/// term that is missing or wrong is not.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// The format's unit roundoff.
    pub unit: f64,
    /// Layers behind which they stand, what is before and after them counted too.
    pub layers: usize,
    /// Of half of the rows, where they are so many that half of them says something; and of the worst.
    pub roundings: [f64; 2],
    /// The part of the rows that may be any: where a mixture rounds a token to another expert, that token is another one from there on.
    pub strays: f64,
}

/// Fewer rows have no usual one.
const FEW: usize = 16;

impl Half {
    /// Holds rows of `width` elements against the reference's, each by its own size.
    pub fn hold(&self, what: &str, got: &[f32], want: &[f32], width: usize) {
        assert_eq!(got.len(), want.len(), "{what}");
        assert!(got.iter().all(|v| v.is_finite()), "{what}: not finite");
        let one = self.unit * (self.layers as f64).sqrt();
        let mut off: Vec<f64> = got.chunks(width).zip(want.chunks(width)).map(|(a, b)| apart(a, b) / one).collect();
        off.sort_by(f64::total_cmp);
        let strays = (off.len() as f64 * self.strays).ceil() as usize;
        let half = if off.len() < FEW { 0.0 } else { off[off.len() / 2] };
        let worst = off[..off.len() - strays].last().copied().unwrap_or(0.0);
        let told = format!("{what}: rows off by {half:.2}, at most {worst:.2} roundings");
        println!("{told}");
        assert!(half <= self.roundings[0] && worst <= self.roundings[1], "{told}");
    }
}

/// ‖a − b‖ / ‖b‖.
pub fn apart(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (off / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn what_is_rounded_passes_and_what_is_wrong_does_not() {
    let want: Vec<f32> = (0..320).map(|i| (i as f32 * 0.37).sin()).collect();
    let half = Half { unit: 1.0 / 256.0, layers: 1, roundings: [2.0, 8.0], strays: 0.0 };
    let passes = |half: Half, got: &[f32]| std::panic::catch_unwind(|| half.hold("rows", got, &want, 10)).is_ok();
    let rounded: Vec<f32> = want.iter().map(|v| v * (1.0 + 1.0 / 256.0)).collect();
    assert!(passes(half, &rounded));
    // One row, all of them a little, and no number.
    let mut one = rounded.clone();
    one[..10].iter_mut().for_each(|v| *v *= 1.05);
    assert!(!passes(half, &one) && passes(Half { strays: 0.01, ..half }, &one));
    assert!(!passes(half, &want.iter().map(|v| v * 1.01).collect::<Vec<_>>()));
    assert!(!passes(half, &[&[f32::NAN], &rounded[1..]].concat()));
}
