//! The formula in f32 tensor ops.

use super::{L2NormOp, MIN_NORM};
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &L2NormOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let s = x.to_dtype(DType::F32)?;
    let norm = s.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(f64::from(MIN_NORM))?;
    Ok(s.broadcast_div(&norm)?.to_dtype(x.dtype())?)
}
