//! Sequence by sequence in f32: two batched products with a softmax between.

use super::{AttentionOp, Bias, Disentangled, Sees};
use crate::Result;
use candle_core::{D, DType, Tensor};
use std::ops::Range;

/// A score that no softmax sees. Not an infinity: Metal compiles with fast mathematics, in which there is none.
const UNSEEN: f32 = -1e30;

pub(super) fn run(op: &AttentionOp) -> Result<Tensor> {
    // [tokens, heads, size]
    let (q, k, v) = (op.q.candle()?, op.k.candle()?, op.v.candle()?);
    let mut parts = Vec::with_capacity(op.how.queries.count());
    for (queries, keys) in op.how.queries.iter().zip(op.how.keys.iter()) {
        let (q, k, v) = (heads_first(q, &queries)?, heads_first(k, &keys)?, heads_first(v, &keys)?); // [heads, t, size]
        let mut scores = product(&q, &k)?; // [heads, tq, tk]
        if let Bias::Disentangled(d) = &op.how.bias {
            scores = positions(d, &q, &k, scores)?;
        }
        scores = (scores * f64::from(op.how.scale))?;
        if let Some(bias) = added(op, queries.len(), keys.len(), scores.device())? {
            scores = scores.broadcast_add(&bias)?;
        }
        let e = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
        parts.push(p.matmul(&v)?.transpose(0, 1)?.contiguous()?);
    }
    Ok(Tensor::cat(&parts, 0)?.to_dtype(op.q.dtype().candle())?)
}

/// Rows of `[tokens, heads, size]` as `[heads, t, size]` in f32. Contiguous before each product: Candle's Metal gemm misreads
/// some strided batches (see its tracker).
fn heads_first(t: &Tensor, rows: &Range<usize>) -> Result<Tensor> {
    Ok(t.narrow(0, rows.start, rows.len())?.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()?)
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(a.matmul(&b.transpose(1, 2)?.contiguous()?)?)
}

/// Adds the terms of content and position: every row of the tables, then the one that each pair asks for.
fn positions(d: &Disentangled, q: &Tensor, k: &Tensor, mut scores: Tensor) -> Result<Tensor> {
    let (heads, tq, tk) = scores.dims3()?;
    let all = 0..d.rows();
    let gathered = |content: &Tensor, table: &crate::Tensor, index: Vec<u32>, (a, b): (usize, usize)| -> Result<_> {
        let met = product(content, &heads_first(table.candle()?, &all)?)?; // [heads, a, rows]
        let index = Tensor::from_vec(index, (1, a, b), content.device())?.expand((heads, a, b))?.contiguous()?;
        Ok(met.contiguous()?.gather(&index, 2)?)
    };
    let row = |i: usize, j: usize| d.row(i as i64 - j as i64) as u32;
    if let Some(keys) = &d.keys {
        let index = (0..tq).flat_map(|i| (0..tk).map(move |j| row(i, j))).collect();
        scores = (scores + gathered(q, keys, index, (tq, tk))?)?;
    }
    if let Some(queries) = &d.queries {
        let index = (0..tk).flat_map(|j| (0..tq).map(move |i| row(i, j))).collect();
        scores = (scores + gathered(k, queries, index, (tk, tq))?.transpose(1, 2)?.contiguous()?)?;
    }
    Ok(scores)
}

/// What is added to the scaled scores: a bias by distance and what hides the unseen, `[heads or 1, tq, tk]`.
fn added(op: &AttentionOp, tq: usize, tk: usize, device: &candle_core::Device) -> Result<Option<Tensor>> {
    let heads = op.q.dims()[1];
    let mut bias = None;
    if let Some(by_distance) = op.how.bias.by_distance(heads, tq, tk) {
        let distances = tq + tk - 1;
        let index: Vec<u32> = (0..tq).flat_map(|i| (0..tk).map(move |j| (j + tq - 1 - i) as u32)).collect();
        let table = Tensor::from_vec(by_distance, (heads, distances), device)?;
        bias = Some(table.index_select(&Tensor::new(index, device)?, 1)?.reshape((heads, tq, tk))?);
    }
    if op.how.sees != Sees::All {
        let hide = |i: usize| {
            let seen = op.how.sees.range(i, tk);
            (0..tk).map(move |j| if seen.contains(&j) { 0.0 } else { UNSEEN })
        };
        let hidden = Tensor::from_vec((0..tq).flat_map(hide).collect::<Vec<f32>>(), (1, tq, tk), device)?;
        bias = Some(match bias {
            Some(bias) => bias.broadcast_add(&hidden)?,
            None => hidden,
        });
    }
    Ok(bias)
}
