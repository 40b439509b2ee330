//! Sequence by sequence: Candle's product, then the formula in f32 tensor ops.

use super::SpladeOp;
use crate::Result;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &SpladeOp) -> Result<Tensor> {
    let x = op.x.candle()?;
    let w = op.weight.rows()?.t()?;
    let bias = op.bias.as_ref().map(|b| Ok::<_, crate::Error>(b.candle()?.to_dtype(DType::F32)?)).transpose()?;
    let mut rows = Vec::with_capacity(op.segments.count());
    for range in op.segments.lengths(op.scope).iter() {
        let mut logits = x.narrow(0, range.start, range.len())?.contiguous()?.matmul(&w)?.to_dtype(DType::F32)?;
        if let Some(bias) = &bias {
            logits = logits.broadcast_add(bias)?;
        }
        // The weight grows with the logit, so the largest logit has the largest weight.
        let pooled = if op.options.sum { logits } else { logits.max_keepdim(0)? };
        let mut weights = (pooled.relu()? + 1.0)?.log()?;
        if op.options.twice {
            weights = (weights + 1.0)?.log()?;
        }
        rows.push(if op.options.sum { weights.sum_keepdim(0)? } else { weights });
    }
    Ok(Tensor::cat(&rows, 0)?)
}
