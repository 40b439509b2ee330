//! The formula in f32 tensor ops, the weight in T.

use super::RmsNormOp;
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &RmsNormOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let s = x.to_dtype(DType::F32)?;
    let mean = s.sqr()?.mean_keepdim(D::Minus1)?;
    let y = s.broadcast_div(&(mean + f64::from(op.norm.eps))?.sqrt()?)?.to_dtype(x.dtype())?;
    Ok(y.broadcast_mul(op.norm.weight.candle()?)?)
}
