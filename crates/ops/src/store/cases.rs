//! Cases: rows in no order, other rows left alone; a cache in another dtype; tokens that are views into a wider projection.

use super::{Cache, CacheShape, store};
use crate::case::{Case, Input, Tolerance};
use crate::{DType, Tensor};

/// Rows of the cache, and tokens written.
const ROWS: usize = 24;
const TOKENS: [u32; 7] = [3, 20, 4, 0, 23, 7, 8];

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [(3, 64), (1, 128), (2, 5), (8, 1)];
    let kept = |dtype: DType| [dtype, DType::F16, DType::F32].map(|kept| (dtype, kept));
    let mut pairs: Vec<_> = DType::FLOATS.into_iter().flat_map(kept).collect();
    pairs.dedup();
    pairs.iter().flat_map(|pair| shapes.iter().enumerate().map(|(i, s)| one(i as u64, *pair, *s))).collect()
}

fn one(seed: u64, (dtype, kept): (DType, DType), (heads, size): (usize, usize)) -> Case {
    let width = heads * size;
    // The values of a projection to keys and values.
    let x = Input::normal(seed + 1500, &[TOKENS.len(), 2 * heads, size], dtype, (0.0, 1.0));
    let reference = x.clone();
    Case {
        op: "store",
        name: format!("{} of {ROWS} rows, {heads} heads of {size}, in {kept}", TOKENS.len()),
        dtype,
        // One rounding to the cache's dtype, where it is the coarser.
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: kept.unit_roundoff() / DType::F32.unit_roundoff() },
        flops: (2 * TOKENS.len() * width) as u64,
        prepare: Box::new(move |place| {
            let rows = Tensor::from_u32(&TOKENS, place)?;
            let values = x.on(place)?.narrow(1, heads, heads)?;
            let place = place.clone();
            Ok(Box::new(move || {
                let cache = Cache::new(CacheShape { layers: 1, heads, size }, ROWS, kept, &place)?;
                let [_, kept] = cache.layer(0)?;
                store(kept, &values, &rows)?;
                Ok(kept.clone())
            }))
        }),
        reference: Box::new(move || {
            let mut rows = vec![0f64; ROWS * width];
            for (token, row) in TOKENS.iter().enumerate() {
                let values = &reference.values[(2 * token + 1) * width..][..width];
                rows[*row as usize * width..][..width].iter_mut().zip(values).for_each(|(r, v)| *r = f64::from(*v));
            }
            rows
        }),
    }
}
