//! Launches `kernel.cu`: a warp per row, or a block if rows are long.

use super::{L2NormOp, MIN_NORM};
use crate::Result;
use crate::launch::cuda::{Binary, Call, Kernel, View, binary, rows};
use crate::launch::params;
use crate::launch::strided::Rows;

const BINARY: Binary = binary!("l2_norm");

pub(super) fn run(op: &L2NormOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let Rows { rows, cols: n, stride } = x.rows()?;
    let (kind, grid) = rows::kind(rows, n, op.x.dtype(), x.is_16_byte_aligned()?);
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("l2_norm_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .made(&y)
        .numbers(&params![rows, n, stride, MIN_NORM])
        .run(grid)?;
    y.tensor(op.x.dims())
}
