//! Cases: whole heads and a part of them, a view into a fused projection, large positions; and with
//! a KV cache write, in every format and to rows out of order.

use super::Rotary;
use super::reference::{self, Problem};
use crate::case::{Case, Input, Tolerance, ids, weights};
use crate::tensor::host;
use crate::{DType, KvCache, KvCacheFormat, KvCacheShape, Projected, Tensor};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, heads, head size, rotated dims, positions, base
    let shapes = [
        (64, 24, 64, 64, 512, 10_000.0),
        (9, 3, 12, 12, 40, 1_000.0),
        (5, 2, 80, 32, 8192, 160_000.0),
        (3, 1, 2, 2, 7, 10_000.0),
        (11, 3, 17, 6, 3, 1_000.0),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    // heads of queries, KV heads, head size, rotated dims
    let floats = [(4, 2, 64, 64), (3, 1, 17, 6), (2, 2, 12, 8), (5, 1, 10, 10), (3, 3, 7, 4)];
    // Halves that end within a Q8 block, and whole ones.
    let blocks = [(3, 1, 64, 64), (2, 2, 96, 96), (4, 2, 32, 12), (1, 1, 64, 20)];
    let with_kv_write = |dtype| {
        let floats = [DType::F32, DType::F16, DType::BF16].into_iter().flat_map(move |format| {
            floats
                .into_iter()
                .zip(0..)
                .map(move |(s, seed)| one_kv_write(seed, (dtype, KvCacheFormat::Float(format)), s))
        });
        floats
            .chain(blocks.into_iter().zip(10..).map(move |(s, seed)| one_kv_write(seed, (dtype, KvCacheFormat::Q8), s)))
    };
    DType::FLOATS.into_iter().flat_map(case).chain(DType::FLOATS.into_iter().flat_map(with_kv_write)).collect()
}

type Shape = (usize, usize, usize, usize, usize, f64);

fn one(seed: u64, dtype: DType, (tokens, heads, size, dims, positions, base): Shape) -> Case {
    // Half of the heads of a wider tensor, like queries and keys in a fused projection.
    let x = Input::normal(seed + 800, &[tokens, 2 * heads, size], dtype, (0.0, 1.0));
    let at = ids(seed + 850, tokens, positions as u32);
    let frequencies = Rotary::frequencies(base, dims);
    let reference_x = x.columns(0, heads * size);
    let (reference_positions, reference_frequencies) = (at.clone(), frequencies.clone());
    Case {
        op: "rotary",
        name: format!("{tokens}x{heads}x{size}, {dims} rotated"),
        dtype,
        // Two products and a sum in f32, rounded once.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 4.0 },
        flops: 3 * (tokens * heads * size) as u64,
        prepare: Box::new(move |place| {
            let rotary = Rotary::new(&weights(&[], place), &frequencies, positions)?;
            let x = x.on(place)?.narrow(1, 0, heads)?;
            let at = Tensor::from_u32(&at, place)?;
            Ok(Box::new(move || rotary.forward(&x, &at)))
        }),
        reference: Box::new(move || {
            reference::rotary(&Problem {
                x: &reference_x,
                positions: &reference_positions,
                frequencies: &reference_frequencies,
                heads,
                size,
            })
        }),
    }
}

/// Rows of the cache, and the rows of the tokens.
const ROWS: usize = 9;
const TOKENS: [u32; 5] = [3, 8, 4, 0, 7];

type Heads = (usize, usize, usize, usize);

fn one_kv_write(seed: u64, (dtype, format): (DType, KvCacheFormat), (heads, kv_heads, size, dims): Heads) -> Case {
    let all = heads + 2 * kv_heads;
    let x = Input::normal(seed + 870, &[TOKENS.len(), all, size], dtype, (0.0, 1.0));
    // The keys once more, as a tensor of their own with gaps between heads.
    let keys = x.values.chunks(size).enumerate().filter(|(i, _)| (heads..heads + kv_heads).contains(&(i % all)));
    let keys: Vec<f32> = keys.flat_map(|(_, head)| head.iter().copied().chain([9.0; 3])).collect();
    let separate_keys = Input::new(&[TOKENS.len(), kv_heads, size + 3], dtype, move || keys);
    let at = ids(seed + 890, TOKENS.len(), 50);
    let frequencies = Rotary::frequencies(100.0, dims);
    let expected = {
        let parts = |from: usize, heads: usize| x.columns(from * size, heads * size);
        let rotated = |x: &[f32], heads| {
            reference::rotary(&Problem { x, positions: &at, frequencies: &frequencies, heads, size })
        };
        let in_rows = |x: Vec<f64>| {
            let mut rows = vec![0f64; ROWS * kv_heads * size];
            for (row, x) in TOKENS.iter().zip(x.chunks(kv_heads * size)) {
                rows[*row as usize * x.len()..][..x.len()].copy_from_slice(x);
            }
            rows
        };
        let keys = in_rows(rotated(&parts(heads, kv_heads), kv_heads));
        let values = in_rows(parts(heads + kv_heads, kv_heads).iter().map(|v| f64::from(*v)).collect());
        [rotated(&parts(0, heads), heads), keys, values].concat()
    };
    let n = expected.len();
    // Roundings of the rotation, then of the cache.
    let sums = 4.0
        + match format {
            KvCacheFormat::Float(dtype) => dtype.unit_roundoff() / DType::F32.unit_roundoff(),
            // Half a step of a block with the largest elements, relative to the smallest: a wrong
            // neighbouring code is further off.
            KvCacheFormat::Q8 => {
                let largest = expected.iter().fold(0f64, |most, v| most.max(v.abs()));
                let rms = (expected.iter().map(|v| v * v).sum::<f64>() / n as f64).sqrt();
                (0.5 / 127.0 + DType::F16.unit_roundoff()) * largest / rms / DType::F32.unit_roundoff()
            }
        };
    Case {
        op: "rotary",
        name: format!("{heads} and {kv_heads} heads of {size}, {dims} rotated, cached in {format}"),
        dtype,
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums },
        flops: 3 * (TOKENS.len() * (heads + kv_heads) * size) as u64,
        prepare: Box::new(move |place| {
            let rotary = Rotary::new(&weights(&[], place), &frequencies, 50)?;
            let x = x.on(place)?;
            let part = |from, heads| x.narrow(1, from, heads);
            let (q, mut k, v) = (part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?);
            if seed % 2 == 1 {
                k = separate_keys.on(place)?.narrow(2, 0, size)?;
            }
            let (positions, rows) = (Tensor::from_u32(&at, place)?, Tensor::from_u32(&TOKENS, place)?);
            let place = place.clone();
            Ok(Box::new(move || {
                let cache = KvCache::new(KvCacheShape { layers: 1, heads: kv_heads, size }, ROWS, format, &place)?;
                let x = Projected { q: &q, k: &k, v: &v, positions: &positions };
                let q = rotary.forward_and_write_kv(x, cache.layer(0)?, &rows)?;
                let [keys, values] = cache.layer(0)?;
                let all = || host([q.to_f32()?, keys.to_f32()?, values.to_f32()?].concat(), &[n]);
                Tensor::upload(&[n], DType::F32, &place, all)
            }))
        }),
        reference: Box::new(move || expected.clone()),
    }
}
