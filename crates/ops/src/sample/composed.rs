//! Candle's sort, and its exponential of what is in order; the cuts are walks along that.

use super::{SampleOp, SamplingParams};
use crate::Result;
use crate::tensor::host;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &SampleOp) -> Result<Tensor> {
    let x = op.x.candle()?.to_dtype(DType::F32)?.contiguous()?;
    // A sort wants numbers that have an order.
    let good = x.abs()?.le(f64::from(f32::MAX))?;
    let (sorted, ids) = good.where_cond(&x, &x.zeros_like()?)?.sort_last_dim(false)?;
    let mut chosen = Vec::with_capacity(op.how.len());
    for (row, how) in op.how.iter().enumerate() {
        if good.get(row)?.to_vec1::<u8>()?.contains(&0) {
            chosen.push(u32::MAX);
            continue;
        }
        let ids = ids.get(row)?.to_vec1::<u32>()?;
        chosen.push(ids[if how.temperature == 0.0 { 0 } else { rank(&sorted.get(row)?, how)? }]);
    }
    host(chosen, &[op.how.len()])
}

/// How many are before the one that is drawn from logits in order.
fn rank(sorted: &Tensor, how: &SamplingParams) -> Result<usize> {
    let below = sorted.broadcast_sub(&sorted.narrow(0, 0, 1)?)?.to_dtype(DType::F64)?;
    let mut weights = (below / f64::from(how.temperature))?.exp()?.to_vec1::<f64>()?;
    weights.truncate(how.top_k.map_or(weights.len(), |k| k as usize));
    let enough = weights.iter().sum::<f64>() * f64::from(how.top_p);
    let (mut sum, mut kept) = (0.0, 0);
    while kept < weights.len()
        && (kept == 0 || ((how.top_p == 1.0 || sum < enough) && weights[kept] >= f64::from(how.min_p)))
    {
        sum += weights[kept];
        kept += 1;
    }
    let (target, mut upto) = (sum * how.u, 0.0);
    let at = weights[..kept].iter().position(|weight| {
        upto += weight;
        upto > target
    });
    Ok(at.unwrap_or(kept - 1))
}
