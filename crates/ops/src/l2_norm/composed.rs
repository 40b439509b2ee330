//! The formula in f32 tensor ops.

use super::{L2NormOp, LEAST};
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &L2NormOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let s = x.to_dtype(DType::F32)?;
    let length = s.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(f64::from(LEAST))?;
    Ok(s.broadcast_div(&length)?.to_dtype(x.dtype())?)
}
