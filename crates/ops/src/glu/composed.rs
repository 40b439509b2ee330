//! The formula in f32 tensor ops.

use super::{Gate, GluOp};
use crate::Result;
use candle_core::DType;

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let n = op.width();
    let part = |start| -> Result<_> { Ok(x.narrow(1, start, n)?.contiguous()?.to_dtype(DType::F32)?) };
    let mut y = match op.gate {
        Some(Gate::First) => (op.activation.composed(part(0)?)? * part(n)?)?,
        Some(Gate::Second) => (op.activation.composed(part(n)?)? * part(0)?)?,
        None => op.activation.composed(part(0)?)?,
    };
    if let Some(scales) = &op.scales {
        y = y.broadcast_mul(&scales.candle()?.to_dtype(DType::F32)?)?;
    }
    Ok(y.to_dtype(x.dtype())?)
}
