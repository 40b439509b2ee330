//! The formula in f32 tensor ops.

use super::SoftmaxOp;
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &SoftmaxOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let s = x.to_dtype(DType::F32)?;
    let e = s.broadcast_sub(&s.max_keepdim(D::Minus1)?)?.exp()?;
    Ok(e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?.to_dtype(x.dtype())?)
}
