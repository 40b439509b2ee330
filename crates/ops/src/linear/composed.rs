//! Candle's matrix product, then bias and activation. Rounds to T after the product and after each step.

use super::{Activation, Layout, LinearOp, cpu};
use crate::Result;

pub(super) fn run(op: &LinearOp) -> Result<candle_core::Tensor> {
    let x = op.x.candle()?.contiguous()?;
    let w = match op.weight.layout {
        Layout::Rows => op.weight.data.candle()?.clone(),
        Layout::Panels => cpu::unpack(&op.weight)?,
    };
    let dims = x.dims().to_vec();
    let rows = dims[..dims.len() - 1].iter().product::<usize>();
    let mut y = x.reshape((rows, op.weight.k))?.matmul(&w.t()?)?;
    if let Some(bias) = &op.bias {
        y = y.broadcast_add(bias.candle()?)?;
    }
    let y = match op.activation {
        Activation::None => y,
        Activation::Gelu => y.gelu_erf()?,
        Activation::GeluTanh => y.gelu()?,
        Activation::Relu => y.relu()?,
        Activation::Silu => y.silu()?,
        Activation::Tanh => y.tanh()?,
    };
    Ok(y.reshape([&dims[..dims.len() - 1], &[op.weight.n]].concat())?)
}
