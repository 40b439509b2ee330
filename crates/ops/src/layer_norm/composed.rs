//! The formula in f32 tensor ops.

use super::LayerNormOp;
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &LayerNormOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let mut s = x.to_dtype(DType::F32)?;
    if let Some(residual) = &op.residual {
        s = (s + residual.candle()?.to_dtype(DType::F32)?)?;
    }
    let d = s.broadcast_sub(&s.mean_keepdim(D::Minus1)?)?;
    let variance = d.sqr()?.mean_keepdim(D::Minus1)?;
    let mut y = d.broadcast_div(&(variance + f64::from(op.norm.eps))?.sqrt()?)?;
    y = y.broadcast_mul(&op.norm.weight.candle()?.to_dtype(DType::F32)?)?;
    if let Some(bias) = &op.norm.bias {
        y = y.broadcast_add(&bias.candle()?.to_dtype(DType::F32)?)?;
    }
    Ok(y.to_dtype(x.dtype())?)
}
