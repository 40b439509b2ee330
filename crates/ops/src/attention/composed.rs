//! In f32, by blocks of a sequence's queries: two batched products with a softmax between.

use super::{AttentionOp, Bias, Disentangled, Mask};
use crate::Result;
use crate::kv_write::{BLOCK, KvTensor};
use candle_core::{D, DType, Tensor};
use std::ops::Range;

/// Score of a masked key. Not −∞: Metal compiles with fast math, which has no infinities.
const MASKED: f32 = -1e30;

/// Queries per block, so that the scores of a long text do not take gigabytes.
pub(super) const QUERIES: usize = 512;

pub(super) fn run(op: &AttentionOp) -> Result<Tensor> {
    // [tokens, heads, size]
    let q = op.q.candle()?;
    let mut parts = Vec::with_capacity(op.options.queries.count());
    for (sequence, queries) in op.options.queries.lengths(op.scope).iter().enumerate() {
        let reachable = op.options.mask.reachable_keys(queries.len(), op.options.keys.len(op.scope, sequence));
        let offset =
            op.options.mask.query_offset(queries.len(), op.options.keys.len(op.scope, sequence)) - reachable.start;
        let keys = op.options.keys.runs(op.scope, sequence, reachable);
        let q = heads_first(&q.narrow(0, queries.start, queries.len())?)?; // [heads, t, size]
        let (k, v) = (gather_kv(&op.k, &keys, q.dim(0)?)?, gather_kv(&op.v, &keys, q.dim(0)?)?);
        let keys = k.dim(1)?;
        for first in (0..queries.len()).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(queries.len());
            let visible_keys = |i| op.options.mask.range(offset + i, keys);
            let visible = visible_keys(block.start).start..visible_keys(block.end - 1).end;
            let q = q.narrow(1, block.start, block.len())?.contiguous()?;
            if visible.is_empty() {
                parts.push(q.zeros_like()?.transpose(0, 1)?.contiguous()?);
                continue;
            }
            let part = |t: &Tensor| -> Result<Tensor> { Ok(t.narrow(1, visible.start, visible.len())?.contiguous()?) };
            let (k, v) = (part(&k)?, part(&v)?);
            let query_block =
                QueryBlock { op, queries: offset + block.start..offset + block.end, keys: visible.clone() };
            parts.push(query_block.attend(&q, &k, &v)?.transpose(0, 1)?.contiguous()?);
        }
    }
    Ok(Tensor::cat(&parts, 0)?.to_dtype(op.q.dtype().candle())?)
}

/// A block of a sequence's queries by position, and the keys that some of them attend to.
struct QueryBlock<'a> {
    op: &'a AttentionOp,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl QueryBlock<'_> {
    /// `[heads, queries, size]`.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let mut scores = product(q, k)?; // [heads, tq, tk]
        if let Bias::Disentangled(d) = &self.op.options.bias {
            scores = self.positions(d, q, k, scores)?;
        }
        scores = (scores * f64::from(self.op.options.scale))?;
        if let Some(cap) = self.op.options.cap {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if let Some(bias) = self.bias_and_mask(q.device())? {
            scores = scores.broadcast_add(&bias)?;
        }
        let e = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
        let y = p.matmul(v)?;
        let has_keys: Vec<f32> = self.queries.clone().map(|i| f32::from(!self.visible_keys(i).is_empty())).collect();
        if has_keys.iter().all(|has_key| *has_key == 1.0) {
            return Ok(y);
        }
        // A query that attends to no key yields zeros.
        Ok(y.broadcast_mul(&Tensor::from_vec(has_keys, (1, self.queries.len(), 1), q.device())?)?)
    }

    fn visible_keys(&self, query: usize) -> Range<usize> {
        let all = self.op.options.mask.range(query, usize::MAX);
        all.start.max(self.keys.start)..all.end.min(self.keys.end)
    }

    /// Adds the content-position terms: products with every row of the tables, from which each pair
    /// gathers its own.
    fn positions(&self, d: &Disentangled, q: &Tensor, k: &Tensor, mut scores: Tensor) -> Result<Tensor> {
        let (heads, tq, tk) = scores.dims3()?;
        let gather_positions =
            |content: &Tensor, table: &crate::Tensor, index: Vec<u32>, (a, b): (usize, usize)| -> Result<_> {
                let products = product(content, &heads_first(table.candle()?)?)?; // [heads, a, rows]
                let index =
                    Tensor::from_vec(index, (1, a, b), content.device())?.expand((heads, a, b))?.contiguous()?;
                Ok(products.contiguous()?.gather(&index, 2)?)
            };
        let row = |i: usize, j: usize| d.row(i as i64 - j as i64) as u32;
        let (queries, keys) = (self.queries.clone(), self.keys.clone());
        if let Some(table) = &d.keys {
            let index = queries.clone().flat_map(|i| keys.clone().map(move |j| row(i, j))).collect();
            scores = (scores + gather_positions(q, table, index, (tq, tk))?)?;
        }
        if let Some(table) = &d.queries {
            let index = keys.flat_map(|j| queries.clone().map(move |i| row(i, j))).collect();
            scores = (scores + gather_positions(k, table, index, (tk, tq))?.transpose(1, 2)?.contiguous()?)?;
        }
        Ok(scores)
    }

    /// Bias by distance plus mask, added to the scaled scores: `[heads or 1, tq, tk]`.
    fn bias_and_mask(&self, device: &candle_core::Device) -> Result<Option<Tensor>> {
        let (heads, tq, tk) = (self.op.q.dims()[1], self.queries.len(), self.keys.len());
        let mut bias = None;
        // Distances start at the block's last query and first key.
        let (furthest, nearest) = (self.queries.end, self.keys.end);
        if let Some(by_distance) = self.op.options.bias.by_distance(heads, furthest, nearest) {
            let distances = furthest + nearest - 1;
            let at = |i: usize, j: usize| (j + furthest - 1 - i) as u32;
            let index: Vec<u32> = self.queries.clone().flat_map(|i| self.keys.clone().map(move |j| at(i, j))).collect();
            let table = Tensor::from_vec(by_distance, (heads, distances), device)?;
            bias = Some(table.index_select(&Tensor::new(index, device)?, 1)?.reshape((heads, tq, tk))?);
        }
        if self.op.options.mask != Mask::All {
            let mask_row = |i: usize| {
                let visible = self.visible_keys(i);
                self.keys.clone().map(move |j| if visible.contains(&j) { 0.0 } else { MASKED })
            };
            let mask: Vec<f32> = self.queries.clone().flat_map(mask_row).collect();
            let mask = Tensor::from_vec(mask, (1, tq, tk), device)?;
            bias = Some(match bias {
                Some(bias) => bias.broadcast_add(&mask)?,
                None => mask,
            });
        }
        Ok(bias)
    }
}

/// `[tokens, heads, size]` as `[heads, tokens, size]` in f32. Contiguous before each product,
/// because Candle's Metal gemm misreads some strided batches (see its tracker).
fn heads_first(t: &Tensor) -> Result<Tensor> {
    Ok(t.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?)
}

/// Rows `runs` of `[rows, kv_heads, size]` as `[heads, keys, size]`: each KV head is repeated for
/// the query heads that share it (grouped-query attention, GQA).
fn gather_kv(t: &KvTensor, runs: &[Range<usize>], heads: usize) -> Result<Tensor> {
    let rows = |t: &crate::Tensor| -> Result<Tensor> {
        let t = t.candle()?;
        match runs {
            [run] => Ok(t.narrow(0, run.start, run.len())?),
            _ => {
                let rows: Vec<u32> = runs.iter().flat_map(|run| run.clone().map(|row| row as u32)).collect();
                // Contiguous, because on Metal Candle takes the number of rows for that of axes
                // when it indexes a view.
                Ok(t.contiguous()?.index_select(&Tensor::new(rows, t.device())?, 0)?)
            }
        }
    };
    let t = match t {
        KvTensor::Float(floats) => rows(floats)?,
        KvTensor::Q8 { codes, scales } => dequantize(&rows(codes)?, &rows(scales)?)?,
    };
    let (_, kv_heads, size) = t.dims3()?;
    let t = heads_first(&t)?;
    if kv_heads == heads {
        return Ok(t);
    }
    let keys = t.dim(1)?;
    Ok(t.unsqueeze(1)?.expand((kv_heads, heads / kv_heads, keys, size))?.contiguous()?.reshape((heads, keys, size))?)
}

/// Dequantizes Q8 codes `[rows, kv_heads, size]`.
fn dequantize(codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let (rows, kv_heads, size) = codes.dims3()?;
    let codes = codes.to_dtype(DType::F32)?;
    // Codes are signed bytes stored as u8.
    let codes = (&codes - (codes.ge(128f32)?.to_dtype(DType::F32)? * 256.0)?)?;
    let codes = codes.reshape((rows, kv_heads, size / BLOCK, BLOCK))?;
    let scales = scales.to_dtype(DType::F32)?.unsqueeze(D::Minus1)?;
    Ok(codes.broadcast_mul(&scales)?.reshape((rows, kv_heads, size))?)
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(a.matmul(&b.transpose(1, 2)?.contiguous()?)?)
}
