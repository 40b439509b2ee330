//! Token by token in f32 tensor ops.

use super::{GATES, LstmOp, UNITS};
use crate::{Activation, Result};
use candle_core::{DType, Tensor};

pub(super) fn run(op: &LstmOp) -> Result<Tensor> {
    let (n, panels) = (op.hidden, op.hidden.div_ceil(UNITS));
    let x = op.x.candle()?;
    let wide = x.to_dtype(DType::F32)?;
    let mut directions = Vec::new();
    for direction in 0..2 {
        // [h, gates · hidden]
        let w = op.recurrent.candle()?.narrow(0, direction, 1)?.reshape((panels, n, GATES, UNITS))?;
        let w = w.permute((1, 2, 0, 3))?.contiguous()?.reshape((n, GATES, panels * UNITS))?;
        let w = w.narrow(2, 0, n)?.contiguous()?.reshape((n, GATES * n))?.to_dtype(DType::F32)?;
        let mut rows = vec![None; op.segments.tokens()];
        for range in op.segments.lengths(op.scope).iter() {
            let mut state: Option<(Tensor, Tensor)> = None;
            for step in 0..range.len() {
                let token = if direction == 0 { range.start + step } else { range.end - 1 - step };
                let mut gates = wide.narrow(0, token, 1)?.narrow(1, direction * GATES * n, GATES * n)?.contiguous()?;
                if let Some((h, _)) = &state {
                    gates = (gates + h.matmul(&w)?)?;
                }
                let gate = |i: usize, activation: Activation| -> Result<Tensor> {
                    activation.composed(gates.narrow(1, i * n, n)?.contiguous()?)
                };
                let mut c = (gate(0, Activation::Sigmoid)? * gate(2, Activation::Tanh)?)?;
                if let Some((_, before)) = &state {
                    c = (c + (gate(1, Activation::Sigmoid)? * before)?)?;
                }
                let h = (gate(3, Activation::Sigmoid)? * c.tanh()?)?;
                rows[token] = Some(h.clone());
                state = Some((h, c));
            }
        }
        // Every token is in a sequence.
        directions.push(Tensor::cat(&rows.into_iter().flatten().collect::<Vec<_>>(), 0)?);
    }
    Ok(Tensor::cat(&directions, 1)?.to_dtype(x.dtype())?)
}
