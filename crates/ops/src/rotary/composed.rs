//! Gathers table rows by position, then the formula in f32 tensor ops.

use super::RotaryOp;
use crate::Result;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &RotaryOp) -> Result<Tensor> {
    let x = op.x.candle()?;
    let (half, size) = (op.half(), x.dim(2)?);
    let gather = |t: &crate::Tensor| -> Result<_> {
        // [tokens, 1, half]; contiguous, as in `embed`.
        Ok(t.candle()?.contiguous()?.index_select(op.positions.candle()?, 0)?.unsqueeze(1)?)
    };
    let (cos, sin) = (gather(&op.rotary.cos)?, gather(&op.rotary.sin)?);
    let part = |start, len| -> Result<_> { Ok(x.narrow(2, start, len)?.contiguous()?.to_dtype(DType::F32)?) };
    let (x1, x2) = (part(0, half)?, part(half, half)?);
    let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
    let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
    let mut parts = vec![y1, y2];
    if 2 * half < size {
        parts.push(part(2 * half, size - 2 * half)?);
    }
    Ok(Tensor::cat(&parts, 2)?.to_dtype(x.dtype())?)
}
