//! Sequence by sequence in f32 tensor ops.

use super::{PoolOp, Pooling};
use crate::Result;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &PoolOp) -> Result<Tensor> {
    let x = op.x.candle()?;
    let mut pooled = Vec::with_capacity(op.segments.count());
    for (i, skip) in op.skip.iter().enumerate() {
        let rows = op.rows(i);
        let t = x.narrow(0, rows.start, rows.len())?.to_dtype(DType::F32)?; // [t, n]
        let n = rows.len() as f64;
        let modes = op.modes.iter().map(|mode| {
            Ok(match mode {
                Pooling::Cls => t.narrow(0, 0, 1)?,
                Pooling::LastToken => t.narrow(0, rows.len() - 1, 1)?,
                Pooling::Max => t.max_keepdim(0)?,
                Pooling::Mean => (t.sum_keepdim(0)? / n)?,
                Pooling::MeanSqrtLen => (t.sum_keepdim(0)? / n.sqrt())?,
                Pooling::WeightedMean => {
                    let weights: Vec<f32> = (0..rows.len()).map(|j| (skip + j + 1) as f32).collect();
                    let total = f64::from(weights.iter().sum::<f32>());
                    let weights = Tensor::from_vec(weights, (rows.len(), 1), x.device())?;
                    (t.broadcast_mul(&weights)?.sum_keepdim(0)? / total)?
                }
            })
        });
        pooled.push(Tensor::cat(&modes.collect::<Result<Vec<_>>>()?, 1)?);
    }
    Ok(Tensor::cat(&pooled, 0)?)
}
