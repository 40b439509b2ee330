//! Candle's sort and exponential; the cuts walk along the sorted weights.

use super::{SampleOp, SamplingParams};
use crate::Result;
use crate::tensor::host;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &SampleOp) -> Result<Tensor> {
    let x = op.x.candle()?.to_dtype(DType::F32)?.contiguous()?;
    // Candle's sort needs ordered numbers: replace those that are not finite.
    let finite = x.abs()?.le(f64::from(f32::MAX))?;
    let (sorted, ids) = finite.where_cond(&x, &x.zeros_like()?)?.sort_last_dim(false)?;
    let mut tokens = Vec::with_capacity(op.params.len());
    for (row, params) in op.params.iter().enumerate() {
        if finite.get(row)?.to_vec1::<u8>()?.contains(&0) {
            tokens.push(u32::MAX);
            continue;
        }
        let ids = ids.get(row)?.to_vec1::<u32>()?;
        tokens.push(ids[if params.temperature == 0.0 { 0 } else { rank(&sorted.get(row)?, params)? }]);
    }
    host(tokens, &[op.params.len()])
}

/// The rank of the sampled token among sorted logits.
fn rank(sorted: &Tensor, params: &SamplingParams) -> Result<usize> {
    let below = sorted.broadcast_sub(&sorted.narrow(0, 0, 1)?)?.to_dtype(DType::F64)?;
    let mut weights = (below / f64::from(params.temperature))?.exp()?.to_vec1::<f64>()?;
    weights.truncate(params.top_k.map_or(weights.len(), |k| k as usize));
    let enough = weights.iter().sum::<f64>() * f64::from(params.top_p);
    let (mut sum, mut count) = (0.0, 0);
    while count < weights.len()
        && (count == 0 || ((params.top_p == 1.0 || sum < enough) && weights[count] >= f64::from(params.min_p)))
    {
        sum += weights[count];
        count += 1;
    }
    let (target, mut upto) = (sum * params.u, 0.0);
    let at = weights[..count].iter().position(|weight| {
        upto += weight;
        upto > target
    });
    Ok(at.unwrap_or(count - 1))
}
