//! Look-ups by index, added in f32.

use super::EmbedOp;
use crate::Result;
use candle_core::DType;

pub(super) fn run(op: &EmbedOp) -> Result<candle_core::Tensor> {
    let look_up = |(table, ids): &(crate::Tensor, crate::Tensor)| -> Result<candle_core::Tensor> {
        // Without gaps: on Metal Candle takes the number of rows for that of axes in a view's index.
        Ok(table.candle()?.contiguous()?.index_select(ids.candle()?, 0)?.to_dtype(DType::F32)?)
    };
    let mut sum = look_up(&op.pairs[0])?;
    for pair in &op.pairs[1..] {
        sum = (sum + look_up(pair)?)?;
    }
    Ok(sum.to_dtype(op.pairs[0].0.dtype().candle())?)
}
