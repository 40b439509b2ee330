//! Attention over so many rows that GPUs use other kernels for it, which no case reaches: a
//! reference of all rows would take minutes. Instead, this compares a sample of rows with f64.

use sconce_ops::attention::{Attention, Bias, Mask, attention};
use sconce_ops::case::{devices, places};
use sconce_ops::{DType, Ladder, Place, Policy, Rung, Segments, Tensor};
use sconce_ops::{Keys, Pages};
use sconce_testkit::{Rng, Suite};

/// Rows of a page.
const PAGE: usize = 16;

/// Lengths of the sequences, heads of q, heads of k and v, and their size.
struct Shape {
    lengths: Vec<usize>,
    heads: usize,
    kv_heads: usize,
    size: usize,
    mask: Mask,
    /// Whether keys are in pages of a KV cache instead of contiguous.
    is_paged: bool,
}

/// Numbers from −2 to 2, rounded to the format, on the device and on the host.
fn numbers(seed: u64, dims: &[usize], dtype: DType, place: &Place) -> (Tensor, Vec<f32>) {
    let mut rng = Rng::new(seed);
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| 2.0 * rng.unit_f32()).collect();
    let tensor = Tensor::from_f32(&values, dims, dtype, place).unwrap();
    let rounded = tensor.to_f32().unwrap();
    (tensor, rounded)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn check_rows(shape: &Shape, dtype: DType, place: &Place) {
    let Shape { heads, kv_heads, size, mask, .. } = *shape;
    let queries = Segments::new(&shape.lengths).unwrap();
    let pages: usize = shape.lengths.iter().map(|n| n.div_ceil(PAGE)).sum();
    // Pages in reverse order.
    let mut free_pages = (0..pages as u32).rev();
    let mut table = |n: &usize| (free_pages.by_ref().take(n.div_ceil(PAGE)).collect::<Vec<_>>().into(), *n);
    let paged = Pages::new(shape.lengths.iter().map(&mut table).collect(), PAGE).unwrap();
    let row = |i: usize, j: usize| {
        if shape.is_paged { paged.observe().row(i, j) } else { queries.observe().range(i).start + j }
    };
    let rows = if shape.is_paged { pages * PAGE } else { queries.tokens() };

    let (q, qs) = numbers(1, &[queries.tokens(), heads, size], dtype, place);
    let (k, ks) = numbers(2, &[rows, kv_heads, size], dtype, place);
    let (v, vs) = numbers(3, &[rows, kv_heads, size], dtype, place);
    let keys = if shape.is_paged { Keys::Paged(paged.clone()) } else { queries.clone().into() };
    let scale = 1.0 / (size as f32).sqrt();
    let options = Attention { queries: queries.clone(), keys, scale, cap: None, mask, bias: Bias::None };
    let y = attention(&q, k, v, &options).unwrap().to_f32().unwrap();

    for (i, range) in queries.observe().iter().enumerate().step_by(shape.lengths.len().div_ceil(5)) {
        for place in (0..range.len()).step_by(97).chain([range.len() - 1]) {
            for head in [0, heads / 2, heads - 1] {
                let at = ((range.start + place) * heads + head) * size;
                let of = |j: usize| (row(i, j) * kv_heads + head / (heads / kv_heads)) * size;
                let visible = if mask == Mask::Causal { place + 1 } else { range.len() };
                let score = |j: usize| dot(&qs[at..][..size], &ks[of(j)..][..size]) * f64::from(scale);
                let scores: Vec<f64> = (0..visible).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let e: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = e.iter().sum();
                for c in 0..size {
                    let terms = (0..visible).map(|j| e[j] / sum * f64::from(vs[of(j) + c]));
                    let (want, all) = terms.fold((0.0, 0.0), |(sum, all), t| (sum + t, all + t.abs()));
                    let got = f64::from(y[at + c]);
                    // The result is rounded, on some devices each exponential too; sums are in f32.
                    let allowed = dtype.unit_roundoff() * (want.abs() + all) * 1.01 + 1e-5;
                    let what = format!("sequence {i}, query {place}, head {head}, column {c}");
                    assert!((got - want).abs() <= allowed, "{dtype}, {what}: {got} for {want}");
                }
            }
        }
    }
}

fn attention_over_many_rows_equals_f64(kind: &str) {
    let shape = |lengths: &[usize], heads, kv_heads, size, mask, is_paged| Shape {
        lengths: lengths.to_vec(),
        heads,
        kv_heads,
        size,
        mask,
        is_paged,
    };
    let shapes = [
        // Blocks of eight warps: prompts with keys in pages, and with contiguous keys.
        shape(&[1100, 1000], 16, 4, 128, Mask::Causal, true),
        shape(&[1100, 1000], 8, 8, 128, Mask::All, false),
        // A block processes several heads in turn, with all rows in one block and in several.
        shape(&[16; 200], 12, 12, 32, Mask::All, false),
        shape(&[100; 100], 12, 12, 64, Mask::All, false),
    ];
    for (place, force) in places(kind).into_iter().filter(|(_, rung)| *rung == Some(Rung::Fused)) {
        let _here = Ladder::new(Policy::default().with_force(force)).enter();
        for (shape, dtype) in shapes.iter().flat_map(|shape| [(shape, DType::F16), (shape, DType::BF16)]) {
            check_rows(shape, dtype, &place);
        }
    }
}

fn main() {
    Suite::new(devices()).on_each("attention_over_many_rows_equals_f64", attention_over_many_rows_equals_f64).run()
}
