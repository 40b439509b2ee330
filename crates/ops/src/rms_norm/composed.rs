//! The formula in f32 tensor ops, the weight in T.

use super::RmsNormOp;
use crate::Result;
use candle_core::{D, DType};

pub(super) fn run(op: &RmsNormOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let s = x.to_dtype(DType::F32)?;
    let mean = s.sqr()?.mean_keepdim(D::Minus1)?;
    let y = s.broadcast_div(&(mean + f64::from(op.norm.eps))?.sqrt()?)?;
    let weight = op.norm.weight.candle()?;
    let y = match op.norm.from_one {
        true => y.broadcast_mul(&(weight.to_dtype(DType::F32)? + 1.0)?)?.to_dtype(x.dtype())?,
        false => y.to_dtype(x.dtype())?.broadcast_mul(weight)?,
    };
    match &op.residual {
        Some(residual) => Ok((y + residual.candle()?)?),
        None => Ok(y),
    }
}
