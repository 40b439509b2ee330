//! The formula in f32 tensor ops.

use super::{Gate, GluOp};
use crate::Result;
use candle_core::DType;

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?;
    let n = op.half();
    let half = |start| -> Result<_> { Ok(x.narrow(1, start, n)?.contiguous()?.to_dtype(DType::F32)?) };
    let (gate, value) = match op.gate {
        Gate::First => (half(0)?, half(n)?),
        Gate::Second => (half(n)?, half(0)?),
    };
    let mut y = (op.activation.composed(gate)? * value)?;
    if let Some(scales) = &op.scales {
        y = y.broadcast_mul(&scales.candle()?.to_dtype(DType::F32)?)?;
    }
    Ok(y.to_dtype(x.dtype())?)
}
