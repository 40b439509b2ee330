//! Sequence by sequence in f32: two batched products with a softmax between.

use super::AttentionOp;
use crate::Result;
use candle_core::{D, DType, Tensor};

pub(super) fn run(op: &AttentionOp) -> Result<Tensor> {
    // [tokens, heads, size]
    let (q, k, v) = (op.q.candle()?, op.k.candle()?, op.v.candle()?);
    let mut parts = Vec::with_capacity(op.segments.count());
    for range in op.segments.iter() {
        // Contiguous before each product: Candle's Metal gemm misreads some strided batches (see its tracker).
        let heads_first = |t: &Tensor| -> candle_core::Result<Tensor> {
            t.narrow(0, range.start, range.len())?.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous()
        };
        let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?); // [heads, t, size]
        let scores = (q.matmul(&k.transpose(1, 2)?.contiguous()?)? * f64::from(op.scale))?; // [heads, t, t]
        let e = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let p = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
        parts.push(p.matmul(&v)?.transpose(0, 1)?.contiguous()?);
    }
    Ok(Tensor::cat(&parts, 0)?.to_dtype(op.q.dtype().candle())?)
}
