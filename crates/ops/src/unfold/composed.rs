//! Each sequence padded with zeros at its ends, shifted once per offset of the window, stacked.

use super::UnfoldOp;
use crate::Result;
use candle_core::Tensor;

pub(super) fn run(op: &UnfoldOp) -> Result<Tensor> {
    let x = op.x.candle()?;
    let n = x.dim(1)?;
    let ends = Tensor::zeros((op.width / 2, n), x.dtype(), x.device())?;
    let mut parts = Vec::with_capacity(op.segments.count());
    for range in op.segments.lengths(op.scope).iter() {
        let padded = Tensor::cat(&[&ends, &x.narrow(0, range.start, range.len())?, &ends], 0)?;
        let shifted =
            (0..op.width).map(|j| padded.narrow(0, j, range.len())).collect::<candle_core::Result<Vec<_>>>()?;
        parts.push(Tensor::stack(&shifted, 2)?.reshape((range.len(), n * op.width))?);
    }
    Ok(Tensor::cat(&parts, 0)?)
}
