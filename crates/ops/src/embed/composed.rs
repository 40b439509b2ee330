//! Gathers by index, added in f32.

use super::EmbedOp;
use crate::Result;
use candle_core::DType;

pub(super) fn run(op: &EmbedOp) -> Result<candle_core::Tensor> {
    let gather = |(table, ids): &(crate::Tensor, crate::Tensor)| -> Result<candle_core::Tensor> {
        // Contiguous, because on Metal Candle takes the number of rows for that of axes when it
        // indexes a view.
        Ok(table.candle()?.contiguous()?.index_select(ids.candle()?, 0)?.to_dtype(DType::F32)?)
    };
    let mut sum = gather(&op.pairs[0])?;
    for pair in &op.pairs[1..] {
        sum = (sum + gather(pair)?)?;
    }
    Ok(sum.to_dtype(op.pairs[0].0.dtype().candle())?)
}
