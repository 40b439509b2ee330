//! Cases over a paged KV cache: chunked prefill, decoding and both in one batch; grouped-query
//! attention; windows, caps and biases; a cache in another format than the queries. Pages are out
//! of order, with unused pages in between.

use super::reference::{self, Problem};
use super::{Attention, Bias, Mask, attention};
use crate::case::{Case, Input, Tolerance};
use crate::keys::{Keys, Pages};
use crate::kv_write::{KvCacheFormat, KvTensor};
use crate::{DType, Result, Segments};
use std::sync::Arc;

/// Rows of a page.
const PAGE: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Queries and keys of each sequence.
    lengths: &'static [(usize, usize)],
    heads: usize,
    kv_heads: usize,
    size: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Causal,
    CausalWindow(usize),
    Capped,
    /// T5's decoder.
    Buckets,
    /// T5's cross-attention: all keys.
    Cross,
    Alibi,
}

pub(super) fn cases() -> Vec<Case> {
    let shape = |lengths, heads, kv_heads, size, kind| Shape { lengths, heads, kv_heads, size, kind };
    let shapes = [
        shape(&[(1, 40), (1, 1), (1, 129)], 6, 2, 64, Kind::Causal),
        shape(&[(1, 50), (30, 70), (2, 18), (64, 64)], 4, 1, 32, Kind::Causal),
        shape(&[(1, 100), (3, 50), (40, 90)], 2, 2, 20, Kind::CausalWindow(24)),
        shape(&[(1, 33), (20, 33)], 4, 2, 16, Kind::Capped),
        shape(&[(1, 200), (4, 30), (9, 9)], 4, 4, 16, Kind::Buckets),
        shape(&[(1, 21), (6, 40)], 2, 2, 16, Kind::Cross),
        shape(&[(1, 37), (7, 40)], 8, 1, 8, Kind::Alibi),
        shape(&[(1, 600)], 14, 2, 128, Kind::Causal),
        // Split keys: most queries attend to none of the last part.
        shape(&[(32, 513), (4, 513)], 2, 1, 8, Kind::Causal),
    ];
    let formats =
        |dtype: DType| [Some((dtype, dtype.into())), (dtype == DType::F32).then_some((dtype, DType::F16.into()))];
    let floats = DType::FLOATS.into_iter().flat_map(formats).flatten();
    let floats = floats.flat_map(|pair| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, pair, *s)));
    // Q8: head sizes must be multiples of 32.
    let shapes = [
        shapes[0],
        shapes[1],
        shapes[7],
        shape(&[(1, 33), (5, 40), (2, 17)], 4, 4, 96, Kind::Capped),
        shape(&[(1, 21), (6, 40)], 2, 2, 32, Kind::Cross),
        shape(&[(20, 40)], 1, 1, 64, Kind::Causal),
        shape(&[(20, 40)], 1, 1, 96, Kind::Causal),
        shape(&[(20, 40)], 1, 1, 128, Kind::Causal),
    ];
    let case = |dtype| (0..).zip(shapes).map(move |(i, s)| one(i + 10, (dtype, KvCacheFormat::Q8), s));
    floats.chain(DType::FLOATS.into_iter().flat_map(case)).collect()
}

/// A KV cache wider than the queries, for which CUDA has a kernel of each size.
pub(super) fn cases_of_cuda() -> Vec<Case> {
    let case = |dtype, size| {
        let shape = Shape { lengths: &[(1, 40), (20, 33)], heads: 2, kv_heads: 1, size, kind: Kind::Causal };
        one(size as u64, (dtype, KvCacheFormat::Float(DType::F32)), shape)
    };
    let of = |dtype| [32, 64, 96, 128].map(|size| case(dtype, size));
    [DType::F16, DType::BF16].into_iter().flat_map(of).collect()
}

#[derive(Clone)]
struct Inputs {
    shape: Shape,
    q: Input,
    /// The KV cache, `[rows, kv_heads, size]`.
    cache: [Input; 2],
    tables: Vec<Arc<[u32]>>,
    table: Input,
}

impl Inputs {
    fn bias(&self) -> Bias {
        match self.shape.kind {
            Kind::Buckets => Bias::Buckets { table: self.table.values.as_slice().into(), far: 128, both: false },
            Kind::Alibi => Bias::Alibi(self.table.values[..self.shape.heads].into()),
            _ => Bias::None,
        }
    }

    fn options(&self) -> Result<Attention> {
        let Shape { lengths, size, kind, .. } = self.shape;
        let sequences = self.tables.iter().cloned().zip(lengths.iter().map(|(_, keys)| *keys)).collect();
        Ok(Attention {
            queries: Segments::new(&lengths.iter().map(|(queries, _)| *queries).collect::<Vec<_>>())?,
            keys: Keys::Paged(Pages::new(sequences, PAGE)?),
            scale: 1.0 / (size as f32).sqrt(),
            cap: (kind == Kind::Capped).then_some(2.0),
            mask: match kind {
                Kind::CausalWindow(most) => Mask::CausalWindow(most),
                Kind::Cross => Mask::All,
                _ => Mask::Causal,
            },
            bias: self.bias(),
        })
    }

    fn reference(&self) -> Result<Vec<f64>> {
        let Shape { lengths, heads, kv_heads, size, .. } = self.shape;
        let options = self.options()?;
        // Keys in order, copied for each head of queries.
        let gathered = |cache: &Input| -> Vec<f32> {
            let rows = lengths
                .iter()
                .zip(&self.tables)
                .flat_map(|((_, keys), table)| (0..*keys).map(move |j| table[j / PAGE] as usize * PAGE + j % PAGE));
            let head = |row: usize, h: usize| &cache.values[(row * kv_heads + h * kv_heads / heads) * size..][..size];
            rows.flat_map(|row| (0..heads).flat_map(move |h| head(row, h).to_vec())).collect()
        };
        let (k, v) = (gathered(&self.cache[0]), gathered(&self.cache[1]));
        let keys = Segments::new(&lengths.iter().map(|(_, keys)| *keys).collect::<Vec<_>>())?;
        let added = |i: i64, j: i64, head: usize, _: &[f32], _: &[f32]| match self.shape.kind {
            Kind::Buckets => (0.0, f64::from(self.table.values[past_bucket(i - j) * heads + head])),
            Kind::Alibi => (0.0, -f64::from(self.table.values[head]) * (i - j).abs() as f64),
            _ => (0.0, 0.0),
        };
        Ok(reference::attention(&Problem {
            q: &self.q.values,
            k: &k,
            v: &v,
            heads,
            size,
            queries: &options.queries,
            keys: &keys,
            scale: options.scale,
            cap: options.cap,
            mask: options.mask,
            added: &added,
        }))
    }
}

/// T5's 32 causal buckets up to distance 128: half of them exact.
fn past_bucket(away: i64) -> usize {
    let away = away as f64;
    let step = if away < 16.0 { away } else { (16.0 + (away / 16.0).ln() / 8f64.ln() * 16.0 + 1e-9).floor().min(31.0) };
    step as usize
}

/// Values that a cache in `format` represents exactly.
fn representable(seed: u64, dims: &[usize], format: KvCacheFormat) -> Input {
    let dtype = match format {
        KvCacheFormat::Float(dtype) => dtype,
        KvCacheFormat::Q8 => DType::F32,
    };
    let input = Input::normal(seed, dims, dtype, (0.0, 1.0));
    if format == KvCacheFormat::Q8 {
        // Codes up to 127, the first of a block the largest, and scales with few bits.
        let code =
            |i: usize, v: f32| if i.is_multiple_of(32) { 127.0 } else { (v * 40.0).round().clamp(-127.0, 127.0) };
        let scale = |i: usize| (1 + i / 32 % 7) as f32 / 256.0;
        return input.map(move |i, v| code(i, v) * scale(i));
    }
    input
}

fn one(seed: u64, (dtype, format): (DType, KvCacheFormat), shape: Shape) -> Case {
    let Shape { lengths, heads, kv_heads, size, kind } = shape;
    let pages: usize = lengths.iter().map(|(_, keys)| keys.div_ceil(PAGE)).sum();
    // Every third page is unused, and sequences take theirs from the last to the first.
    let mut free = (0..(pages + pages / 2 + 1) as u32).rev().filter(|page| page % 3 != 2);
    let tables = lengths.iter().map(|(_, keys)| free.by_ref().take(keys.div_ceil(PAGE)).collect()).collect();
    let rows = (pages + pages / 2 + 1) * PAGE;
    let queries = lengths.iter().map(|(queries, _)| queries).sum();
    let inputs = Inputs {
        shape,
        q: Input::normal(seed + 1300, &[queries, heads, size], dtype, (0.0, 1.0)),
        cache: [1320, 1340].map(|s| representable(seed + s, &[rows, kv_heads, size], format)),
        tables,
        table: Input::normal(seed + 1360, &[32 * heads], DType::F32, (0.5, 0.3)),
    };
    let reference = inputs.clone();
    let longest = lengths.iter().map(|(_, keys)| *keys).max().unwrap_or(0) as f64;
    let walk = 2.0 * (longest.sqrt() + (size as f64).sqrt());
    let scores = 2.0 + if kind == Kind::Alibi { longest / 4.0 } else { 0.0 };
    Case {
        op: "attention",
        name: format!("{lengths:?} x {heads} heads over {kv_heads} of {size}, {kind:?}, cache in {format}"),
        dtype,
        // As for packed keys; a value weighted before the sum is rounded once more.
        // In bf16 the softmax's numerators are rounded too.
        tolerance: Tolerance {
            fused: if dtype == DType::BF16 { 2.0 } else { 1.0 },
            composed: 1.0,
            sums: 16.0 * scores + walk,
        },
        flops: lengths.iter().map(|(q, k)| 4 * (q * k * heads * size) as u64).sum(),
        prepare: Box::new(move |place| {
            let on = |t: &Input| KvTensor::from_f32(&t.values, &t.dims, format, place);
            let (q, k, v) = (inputs.q.on(place)?, on(&inputs.cache[0])?, on(&inputs.cache[1])?);
            let options = inputs.options()?;
            Ok(Box::new(move || attention(&q, &k, &v, &options)))
        }),
        reference: Box::new(move || reference.reference().unwrap_or_default()),
    }
}
