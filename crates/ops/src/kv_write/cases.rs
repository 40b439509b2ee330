//! Cases: rows out of order, other rows unchanged; a cache in another format; views into a wider
//! projection; rows copied within a cache; values that are not finite.

use super::{KvCache, KvCacheFormat, KvCacheShape};
use crate::case::{Case, Input, Tolerance};
use crate::tensor::host;
use crate::{DType, Place, Result, Tensor};
use half::f16;

/// Rows of the cache, and tokens written.
const ROWS: usize = 24;
const TOKENS: [u32; 7] = [3, 20, 4, 0, 23, 7, 8];

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [(3, 64), (1, 128), (2, 5), (8, 1)];
    let formats = |dtype: DType| [dtype, DType::F16, DType::F32].map(|cached| (dtype, KvCacheFormat::Float(cached)));
    let mut pairs: Vec<_> = DType::FLOATS.into_iter().flat_map(formats).collect();
    pairs.dedup();
    let floats = pairs.iter().flat_map(|pair| shapes.iter().enumerate().map(|(i, s)| one(i as u64, *pair, *s)));
    // Q8: head sizes must be multiples of 32.
    let blocks = DType::FLOATS.into_iter().flat_map(|dtype| {
        [(3, 64), (1, 128), (2, 32), (2, 96)]
            .into_iter()
            .zip(20..)
            .map(move |(s, i)| one(i, (dtype, KvCacheFormat::Q8), s))
    });
    let copies = DType::FLOATS.into_iter().flat_map(|dtype| {
        [(KvCacheFormat::Float(dtype), (2, 5)), (KvCacheFormat::Float(dtype), (1, 3)), (KvCacheFormat::Q8, (3, 64))]
            .map(|(format, shape)| copy_case(dtype, format, shape))
    });
    floats.chain(blocks).chain(copies).chain(DType::FLOATS.map(broken)).collect()
}

/// The dequantized keys and values of a cache of one layer.
fn cached(cache: &KvCache, place: &Place) -> Result<Tensor> {
    let [keys, values] = cache.layer(0)?;
    let dims = [&[2], keys.dims()].concat();
    Tensor::upload(&dims, DType::F32, place, || host([keys.to_f32()?, values.to_f32()?].concat(), &dims))
}

/// Rows copied within a cache, to and from its ends.
fn copy_case(dtype: DType, format: KvCacheFormat, (heads, size): (usize, usize)) -> Case {
    const COPIES: ([u32; 4], [u32; 4]) = ([23, 3, 0, 3], [1, 22, 2, 5]);
    let width = heads * size;
    // Integers whose largest is 127 are exact in every format.
    let value = |i: usize| if i.is_multiple_of(16) { 127.0 } else { (i % 101) as f32 - 50.0 };
    let all = move || (0..TOKENS.len() * width).map(value).collect();
    let x = Input::new(&[TOKENS.len(), heads, size], dtype, all);
    let values = x.values.clone();
    Case {
        op: "kv_write",
        name: format!("{} of {ROWS} rows copied, {heads} heads of {size}, in {format}", COPIES.0.len()),
        dtype,
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: 0.0 },
        flops: 0,
        prepare: Box::new(move |place| {
            let (x, rows) = (x.on(place)?, Tensor::from_u32(&TOKENS, place)?);
            let (from, to) = (Tensor::from_u32(&COPIES.0, place)?, Tensor::from_u32(&COPIES.1, place)?);
            let place = place.clone();
            Ok(Box::new(move || {
                let cache = KvCache::new(KvCacheShape { layers: 1, heads, size }, ROWS, format, &place)?;
                cache.write(0, &x, &x, &rows)?;
                cache.copy(&from, &to)?;
                cached(&cache, &place)
            }))
        }),
        reference: Box::new(move || {
            let mut rows = vec![0f64; ROWS * width];
            for (token, row) in TOKENS.iter().enumerate() {
                let values = &values[token * width..][..width];
                rows[*row as usize * width..][..width].iter_mut().zip(values).for_each(|(r, v)| *r = f64::from(*v));
            }
            for (from, to) in COPIES.0.iter().zip(&COPIES.1) {
                let from = *from as usize * width;
                rows.copy_within(from..from + width, *to as usize * width);
            }
            rows.repeat(2)
        }),
    }
}

/// NaN in some Q8 blocks, each at another of the four elements of a GPU thread, and ∞ in another.
/// They read as -1; other blocks are unchanged.
fn broken(dtype: DType) -> Case {
    const BROKEN: [(usize, f32); 5] =
        [(40, f32::NAN), (96, f32::INFINITY), (133, f32::NAN), (170, f32::NAN), (255, f32::NAN)];
    let x = Input::new(&[1, 4, 64], dtype, || {
        let mut values = vec![127.0; 8 * 32];
        BROKEN.into_iter().for_each(|(i, v)| values[i] = v);
        values
    });
    Case {
        op: "kv_write",
        name: "five broken blocks of eight".to_string(),
        dtype,
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: 0.0 },
        flops: 0,
        prepare: Box::new(move |place| {
            let (x, rows, place) = (x.on(place)?, Tensor::from_u32(&[0], place)?, place.clone());
            Ok(Box::new(move || {
                let cache = KvCache::new(KvCacheShape { layers: 1, heads: 4, size: 64 }, 1, KvCacheFormat::Q8, &place)?;
                cache.write(0, &x, &x, &rows)?;
                let cached = cached(&cache, &place)?;
                let nan_to_minus_one = |v: &f32| if v.is_nan() { -1.0 } else { *v };
                let upload =
                    || host(cached.to_f32()?.iter().map(nan_to_minus_one).collect::<Vec<f32>>(), cached.dims());
                Tensor::upload(cached.dims(), DType::F32, &place, upload)
            }))
        }),
        reference: Box::new(|| {
            let is_broken = |i: usize| BROKEN.iter().any(|(b, _)| i % 256 / 32 == b / 32);
            (0..2 * 256).map(|i| if is_broken(i) { -1.0 } else { 127.0 }).collect()
        }),
    }
}

fn one(seed: u64, (dtype, format): (DType, KvCacheFormat), (heads, size): (usize, usize)) -> Case {
    let width = heads * size;
    // A fused projection to keys and values.
    let mut x = Input::normal(seed + 1500, &[TOKENS.len(), 2 * heads, size], dtype, (0.0, 1.0));
    if format == KvCacheFormat::Q8 {
        x = x.map(untied);
    }
    let reference = x.clone();
    Case {
        op: "kv_write",
        name: format!("{} of {ROWS} rows, {heads} heads of {size}, in {format}", TOKENS.len()),
        dtype,
        tolerance: Tolerance {
            fused: 0.0,
            composed: 0.0,
            sums: match format {
                // One rounding to the cache's dtype, if it is the coarser.
                KvCacheFormat::Float(dtype) => dtype.unit_roundoff() / DType::F32.unit_roundoff(),
                // The reference rounds to the same codes and scales, whose product is exact. A
                // wrong neighbouring code would be off by more than a hundredth.
                KvCacheFormat::Q8 => 1.0,
            },
        },
        flops: (4 * TOKENS.len() * width) as u64,
        prepare: Box::new(move |place| {
            let rows = Tensor::from_u32(&TOKENS, place)?;
            let x = x.on(place)?;
            let (k, v) = (x.narrow(1, 0, heads)?, x.narrow(1, heads, heads)?);
            let place = place.clone();
            Ok(Box::new(move || {
                let cache = KvCache::new(KvCacheShape { layers: 1, heads, size }, ROWS, format, &place)?;
                cache.write(0, &k, &v, &rows)?;
                cached(&cache, &place)
            }))
        }),
        reference: Box::new(move || {
            let mut rows = vec![0f64; 2 * ROWS * width];
            for (part, values) in reference.values.chunks(width).enumerate() {
                let row = part % 2 * ROWS + TOKENS[part / 2] as usize;
                rows[row * width..][..width].iter_mut().zip(values).for_each(|(r, v)| *r = f64::from(*v));
            }
            if format == KvCacheFormat::Q8 {
                rows.chunks_exact_mut(32).for_each(round_to_q8);
            }
            rows
        }),
    }
}

/// Element `i` of blocks of several scales, none of which is halfway between two codes, where
/// either would be right: for numbers with few bits that is only the half of a largest element that
/// is no multiple of 127.
fn untied(i: usize, v: f32) -> f32 {
    const LARGEST: f32 = 255.0 / 64.0;
    let v = match v.abs() {
        _ if i.is_multiple_of(32) => LARGEST,
        half if half == LARGEST / 2.0 => 1.0,
        _ => v.clamp(-3.875, 3.875),
    };
    v * [0.25, 0.5, 1.0, 2.0, 4.0][i / 32 % 5]
}

/// Dequantized values of a q8_0 block: 127 steps to the largest, and the step in f16.
fn round_to_q8(x: &mut [f64]) {
    let d = x.iter().fold(0f64, |most, x| most.max(x.abs())) / 127.0;
    let scale = f16::from_f64(d).to_f64();
    x.iter_mut().for_each(|x| *x = if d == 0.0 { 0.0 } else { (*x / d).round() * scale });
}
