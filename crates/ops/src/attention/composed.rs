//! Block by block of a sequence's queries in f32: two batched products with a softmax between.

use super::{AttentionOp, Bias, Disentangled, Mask};
use crate::Result;
use crate::kv_write::{BLOCK, KvTensor};
use candle_core::{D, DType, Tensor};
use std::ops::Range;

/// A score that no softmax sees. Not an infinity: Metal compiles with fast mathematics, in which there is none.
const UNSEEN: f32 = -1e30;

/// Queries whose scores are held at once, so that a long text does not make a table of gigabytes.
pub(super) const QUERIES: usize = 512;

pub(super) fn run(op: &AttentionOp) -> Result<Tensor> {
    // [tokens, heads, size]
    let q = op.q.candle()?;
    let mut parts = Vec::with_capacity(op.how.queries.count());
    for (sequence, queries) in op.how.queries.lengths(op.scope).iter().enumerate() {
        let reached = op.how.sees.reached(queries.len(), op.how.keys.len(op.scope, sequence));
        let place = op.how.sees.first(queries.len(), op.how.keys.len(op.scope, sequence)) - reached.start;
        let keys = op.how.keys.runs(op.scope, sequence, reached);
        let q = heads_first(&q.narrow(0, queries.start, queries.len())?)?; // [heads, t, size]
        let (k, v) = (looked_up(&op.k, &keys, q.dim(0)?)?, looked_up(&op.v, &keys, q.dim(0)?)?);
        let keys = k.dim(1)?;
        for first in (0..queries.len()).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(queries.len());
            let sees = |i| op.how.sees.range(place + i, keys);
            let seen = sees(block.start).start..sees(block.end - 1).end;
            let q = q.narrow(1, block.start, block.len())?.contiguous()?;
            if seen.is_empty() {
                parts.push(q.zeros_like()?.transpose(0, 1)?.contiguous()?);
                continue;
            }
            let part = |t: &Tensor| -> Result<Tensor> { Ok(t.narrow(1, seen.start, seen.len())?.contiguous()?) };
            let (k, v) = (part(&k)?, part(&v)?);
            let pairs = Pairs { op, queries: place + block.start..place + block.end, keys: seen.clone() };
            parts.push(pairs.attend(&q, &k, &v)?.transpose(0, 1)?.contiguous()?);
        }
    }
    Ok(Tensor::cat(&parts, 0)?.to_dtype(op.q.dtype().candle())?)
}

/// A block of a sequence's queries by their places, and the keys that some of them see.
struct Pairs<'a> {
    op: &'a AttentionOp,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Pairs<'_> {
    /// `[heads, queries, size]`.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let mut scores = product(q, k)?; // [heads, tq, tk]
        if let Bias::Disentangled(d) = &self.op.how.bias {
            scores = self.positions(d, q, k, scores)?;
        }
        scores = (scores * f64::from(self.op.how.scale))?;
        if let Some(cap) = self.op.how.cap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if let Some(bias) = self.added(q.device())? {
            scores = scores.broadcast_add(&bias)?;
        }
        let e = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
        let y = p.matmul(v)?;
        let blind: Vec<f32> = self.queries.clone().map(|i| f32::from(!self.sees(i).is_empty())).collect();
        if blind.iter().all(|seen| *seen == 1.0) {
            return Ok(y);
        }
        // A query that sees no key takes nothing from any.
        Ok(y.broadcast_mul(&Tensor::from_vec(blind, (1, self.queries.len(), 1), q.device())?)?)
    }

    fn sees(&self, query: usize) -> Range<usize> {
        let all = self.op.how.sees.range(query, usize::MAX);
        all.start.max(self.keys.start)..all.end.min(self.keys.end)
    }

    /// Adds the terms of content and position: every row of the tables, then the one that each pair asks for.
    fn positions(&self, d: &Disentangled, q: &Tensor, k: &Tensor, mut scores: Tensor) -> Result<Tensor> {
        let (heads, tq, tk) = scores.dims3()?;
        let gathered =
            |content: &Tensor, table: &crate::Tensor, index: Vec<u32>, (a, b): (usize, usize)| -> Result<_> {
                let met = product(content, &heads_first(table.candle()?)?)?; // [heads, a, rows]
                let index =
                    Tensor::from_vec(index, (1, a, b), content.device())?.expand((heads, a, b))?.contiguous()?;
                Ok(met.contiguous()?.gather(&index, 2)?)
            };
        let row = |i: usize, j: usize| d.row(i as i64 - j as i64) as u32;
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        if let Some(table) = &d.keys {
            let index = queries.clone().flat_map(|i| keys.clone().map(move |j| row(i, j))).collect();
            scores = (scores + gathered(q, table, index, (tq, tk))?)?;
        }
        if let Some(table) = &d.queries {
            let index = keys.flat_map(|j| queries.clone().map(move |i| row(i, j))).collect();
            scores = (scores + gathered(k, table, index, (tk, tq))?.transpose(1, 2)?.contiguous()?)?;
        }
        Ok(scores)
    }

    /// What is added to the scaled scores: a bias by distance and what hides the unseen, `[heads or 1, tq, tk]`.
    fn added(&self, device: &candle_core::Device) -> Result<Option<Tensor>> {
        let (heads, tq, tk) = (self.op.q.dims()[1], self.queries.len(), self.keys.len());
        let mut bias = None;
        // Distances from the block's last query to its first key, and on.
        let (furthest, nearest) = (self.queries.end, self.keys.end);
        if let Some(by_distance) = self.op.how.bias.by_distance(heads, furthest, nearest) {
            let distances = furthest + nearest - 1;
            let at = |i: usize, j: usize| (j + furthest - 1 - i) as u32;
            let index: Vec<u32> = self.queries.clone().flat_map(|i| self.keys.clone().map(move |j| at(i, j))).collect();
            let table = Tensor::from_vec(by_distance, (heads, distances), device)?;
            bias = Some(table.index_select(&Tensor::new(index, device)?, 1)?.reshape((heads, tq, tk))?);
        }
        if self.op.how.sees != Mask::All {
            let hide = |i: usize| {
                let seen = self.sees(i);
                self.keys.clone().map(move |j| if seen.contains(&j) { 0.0 } else { UNSEEN })
            };
            let hidden: Vec<f32> = self.queries.clone().flat_map(hide).collect();
            let hidden = Tensor::from_vec(hidden, (1, tq, tk), device)?;
            bias = Some(match bias {
                Some(bias) => bias.broadcast_add(&hidden)?,
                None => hidden,
            });
        }
        Ok(bias)
    }
}

/// `[tokens, heads, size]` as `[heads, tokens, size]` in f32. Contiguous before each product: Candle's Metal gemm misreads some
/// strided batches (see its tracker).
fn heads_first(t: &Tensor) -> Result<Tensor> {
    Ok(t.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?)
}

/// Rows `runs` of `[rows, shared, size]` as `[heads, keys, size]`, each head as often as others share it.
fn looked_up(t: &KvTensor, runs: &[Range<usize>], heads: usize) -> Result<Tensor> {
    let rows = |t: &crate::Tensor| -> Result<Tensor> {
        let t = t.candle()?;
        match runs {
            [run] => Ok(t.narrow(0, run.start, run.len())?),
            _ => {
                let rows: Vec<u32> = runs.iter().flat_map(|run| run.clone().map(|row| row as u32)).collect();
                // Without gaps: on Metal Candle takes the number of rows for that of axes in a view's index.
                Ok(t.contiguous()?.index_select(&Tensor::new(rows, t.device())?, 0)?)
            }
        }
    };
    let t = match t {
        KvTensor::Float(floats) => rows(floats)?,
        KvTensor::Q8 { codes, scales } => numbers(&rows(codes)?, &rows(scales)?)?,
    };
    let (_, shared, size) = t.dims3()?;
    let t = heads_first(&t)?;
    if shared == heads {
        return Ok(t);
    }
    let keys = t.dim(1)?;
    Ok(t.unsqueeze(1)?.expand((shared, heads / shared, keys, size))?.contiguous()?.reshape((heads, keys, size))?)
}

/// What codes `[rows, shared, size]` stand for by their scales.
fn numbers(codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let (rows, shared, size) = codes.dims3()?;
    let codes = codes.to_dtype(DType::F32)?;
    // The upper half of the bytes are the numbers below zero.
    let codes = (&codes - (codes.ge(128f32)?.to_dtype(DType::F32)? * 256.0)?)?;
    let codes = codes.reshape((rows, shared, size / BLOCK, BLOCK))?;
    let scales = scales.to_dtype(DType::F32)?.unsqueeze(D::Minus1)?;
    Ok(codes.broadcast_mul(&scales)?.reshape((rows, shared, size))?)
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(a.matmul(&b.transpose(1, 2)?.contiguous()?)?)
}
