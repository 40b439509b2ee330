//! Cases: rows in no order, other rows left alone; a cache in another format; tokens that are views into a wider projection.

use super::{Cache, CacheFormat, CacheShape, Vectors, store};
use crate::case::{Case, Input, Tolerance};
use crate::tensor::host;
use crate::{DType, Tensor};
use half::f16;

/// Rows of the cache, and tokens written.
const ROWS: usize = 24;
const TOKENS: [u32; 7] = [3, 20, 4, 0, 23, 7, 8];

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [(3, 64), (1, 128), (2, 5), (8, 1)];
    let kept = |dtype: DType| [dtype, DType::F16, DType::F32].map(|kept| (dtype, CacheFormat::Float(kept)));
    let mut pairs: Vec<_> = DType::FLOATS.into_iter().flat_map(kept).collect();
    pairs.dedup();
    let floats = pairs.iter().flat_map(|pair| shapes.iter().enumerate().map(|(i, s)| one(i as u64, *pair, *s)));
    // Blocks of 32 only.
    let blocks = DType::FLOATS.into_iter().flat_map(|dtype| {
        [(3, 64), (1, 128), (2, 32), (2, 96)]
            .into_iter()
            .zip(20..)
            .map(move |(s, i)| one(i, (dtype, CacheFormat::Q8), s))
    });
    floats.chain(blocks).collect()
}

fn one(seed: u64, (dtype, kept): (DType, CacheFormat), (heads, size): (usize, usize)) -> Case {
    let width = heads * size;
    // The values of a projection to keys and values.
    let mut x = Input::normal(seed + 1500, &[TOKENS.len(), 2 * heads, size], dtype, (0.0, 1.0));
    if kept == CacheFormat::Q8 {
        x.values = x.values.iter().enumerate().map(|(i, v)| untied(i, *v)).collect();
    }
    let reference = x.clone();
    Case {
        op: "store",
        name: format!("{} of {ROWS} rows, {heads} heads of {size}, in {kept}", TOKENS.len()),
        dtype,
        tolerance: Tolerance {
            fused: 0.0,
            composed: 0.0,
            sums: match kept {
                // One rounding to the cache's dtype, where it is the coarser.
                CacheFormat::Float(dtype) => dtype.unit_roundoff() / DType::F32.unit_roundoff(),
                // The reference rounds to the same codes and scales, whose product is exact. A code next to the right one would be
                // off by more than a hundredth.
                CacheFormat::Q8 => 1.0,
            },
        },
        flops: (2 * TOKENS.len() * width) as u64,
        prepare: Box::new(move |place| {
            let rows = Tensor::from_u32(&TOKENS, place)?;
            let values = x.on(place)?.narrow(1, heads, heads)?;
            let place = place.clone();
            Ok(Box::new(move || {
                let cache = Cache::new(CacheShape { layers: 1, heads, size }, ROWS, kept, &place)?;
                let [_, kept] = cache.layer(0)?;
                store(kept, &values, &rows)?;
                match kept {
                    Vectors::Float(floats) => Ok(floats.clone()),
                    blocks => {
                        Tensor::upload(blocks.dims(), DType::F32, &place, || host(blocks.to_f32()?, blocks.dims()))
                    }
                }
            }))
        }),
        reference: Box::new(move || {
            let mut rows = vec![0f64; ROWS * width];
            for (token, row) in TOKENS.iter().enumerate() {
                let values = &reference.values[(2 * token + 1) * width..][..width];
                rows[*row as usize * width..][..width].iter_mut().zip(values).for_each(|(r, v)| *r = f64::from(*v));
            }
            if kept == CacheFormat::Q8 {
                rows.chunks_exact_mut(32).for_each(blocked);
            }
            rows
        }),
    }
}

/// Element `i` of blocks of several sizes in which nothing lies in the middle between two codes, where either is right: of numbers
/// with few bits that is only the half of a largest one that is no multiple of 127.
fn untied(i: usize, v: f32) -> f32 {
    const LARGEST: f32 = 255.0 / 64.0;
    let v = match v.abs() {
        _ if i.is_multiple_of(32) => LARGEST,
        half if half == LARGEST / 2.0 => 1.0,
        _ => v.clamp(-3.875, 3.875),
    };
    v * [0.25, 0.5, 1.0, 2.0, 4.0][i / 32 % 5]
}

/// The numbers that a block of q8_0 stands for: 127 steps to the largest, and the step in f16.
fn blocked(x: &mut [f64]) {
    let d = x.iter().fold(0f64, |most, x| most.max(x.abs())) / 127.0;
    let kept = f16::from_f64(d).to_f64();
    x.iter_mut().for_each(|x| *x = if d == 0.0 { 0.0 } else { (*x / d).round() * kept });
}
