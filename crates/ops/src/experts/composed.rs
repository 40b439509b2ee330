//! Every expert on every row, with probability zero where it is not selected: more arithmetic, but
//! no copy to the host to learn the routing.

use super::ExpertsOp;
use crate::Result;
use candle_core::{DType, Tensor};

pub(super) fn run(op: &ExpertsOp) -> Result<Tensor> {
    let x = op.x.candle()?.contiguous()?;
    let logits = x.to_dtype(DType::F32)?.matmul(&op.experts.router.candle()?.t()?)?; // [tokens, experts]
    let e = logits.broadcast_sub(&logits.max_keepdim(1)?)?.exp()?;
    let p = e.broadcast_div(&e.sum_keepdim(1)?)?;
    // Takes the likeliest remaining expert, top-k times. Candle's sort would do it at once, but is
    // wrong on Metal beyond 1024 experts and fails with CUDA beyond 8192.
    let indices = Tensor::arange(0, op.experts.up.len() as u32, x.device())?.unsqueeze(0)?;
    let (mut remaining, mut selected) = (p.clone(), p.zeros_like()?);
    for _ in 0..op.experts.top {
        let this = indices.broadcast_eq(&remaining.argmax_keepdim(1)?)?.to_dtype(DType::F32)?;
        selected = (selected + &this)?;
        // Below every probability.
        remaining = (remaining - (this * 2.0)?)?;
    }
    let mut p = (p * selected)?;
    if op.experts.renormalised {
        p = p.broadcast_div(&p.sum_keepdim(1)?)?;
    }
    let mut sum: Option<Tensor> = None;
    for (e, (up, down)) in op.experts.up.iter().zip(&*op.experts.down).enumerate() {
        let inner = x.matmul(&up.rows()?.t()?)?;
        let inner = match op.experts.gated {
            true => {
                let half = |start| -> Result<Tensor> { Ok(inner.narrow(1, start, down.k())?.contiguous()?) };
                (op.experts.activation.composed(half(0)?)? * half(down.k())?)?
            }
            false => op.experts.activation.composed(inner)?,
        };
        let y = inner.matmul(&down.rows()?.t()?)?.to_dtype(DType::F32)?;
        let y = y.broadcast_mul(&p.narrow(1, e, 1)?.contiguous()?)?;
        sum = Some(match sum {
            Some(sum) => (sum + y)?,
            None => y,
        });
    }
    let mut y = sum.ok_or_else(|| crate::Error::call("experts", "there are no experts"))?;
    if let Some(bias) = &op.experts.bias {
        y = y.broadcast_add(&bias.candle()?.to_dtype(DType::F32)?)?;
    }
    if let Some(residual) = &op.residual {
        y = (y + residual.candle()?.to_dtype(DType::F32)?)?;
    }
    Ok(y.to_dtype(x.dtype())?)
}
