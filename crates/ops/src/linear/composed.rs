//! Candle's matrix product, then bias, activation and residual. Rounds to T after the product and
//! after each step.

use super::LinearOp;
use crate::Result;

pub(super) fn run(op: &LinearOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?.contiguous()?;
    let w = op.weight.rows()?;
    let dims = x.dims().to_vec();
    let rows = dims[..dims.len() - 1].iter().product::<usize>();
    let mut y = x.reshape((rows, op.weight.k))?.matmul(&w.t()?)?;
    if let Some(bias) = &op.bias {
        y = y.broadcast_add(bias.candle()?)?;
    }
    let mut y = op.activation.composed(y)?;
    if let Some(residual) = &op.residual {
        y = (y + residual.candle()?.reshape((rows, op.weight.n))?)?;
    }
    Ok(y.reshape([&dims[..dims.len() - 1], &[op.weight.n]].concat())?)
}
