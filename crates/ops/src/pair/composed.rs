//! Gathers by index, combined in f32.

use super::{Combine, PairOp};
use crate::Result;
use crate::ladder::Op;
use candle_core::{D, DType, Tensor};

pub(super) fn run(op: &PairOp) -> Result<Tensor> {
    let gather = |(matrix, ids): &(crate::Tensor, crate::Tensor)| -> Result<Tensor> {
        // Contiguous, as in `embed`.
        Ok(matrix.candle()?.contiguous()?.index_select(ids.candle()?, 0)?.to_dtype(DType::F32)?)
    };
    let rows = op.operands.iter().map(gather).collect::<Result<Vec<_>>>()?;
    let sum = |rows: &[Tensor]| -> Result<Tensor> {
        let mut sum = rows[0].clone();
        for row in &rows[1..] {
            sum = (sum + row)?;
        }
        Ok(sum.relu()?)
    };
    let dtype = op.x().dtype().candle();
    match op.combine {
        Combine::ReluSum => Ok(sum(&rows)?.to_dtype(dtype)?),
        Combine::Product => Ok((&rows[0] * &rows[1])?.to_dtype(dtype)?),
        Combine::Dot => Ok((&rows[0] * &rows[1])?.sum_keepdim(D::Minus1)?),
        Combine::Score => {
            let y = (sum(&rows[..2])? * &rows[2])?.sum_keepdim(D::Minus1)?;
            match &op.offsets {
                Some(offsets) => {
                    Ok((y + offsets.candle()?.contiguous()?.index_select(op.operands[2].1.candle()?, 0)?)?)
                }
                None => Ok(y),
            }
        }
    }
}
