//! Launches `kernel.cu`: a warp per row, or a block if rows are long.

use super::SoftmaxOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Kernel, View, binary, rows};
use crate::launch::params;
use crate::launch::strided::Rows;

const BINARY: Binary = binary!("softmax");

pub(super) fn run(op: &SoftmaxOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let Rows { rows, cols: n, stride } = x.rows()?;
    let (kind, grid) = rows::kind(rows, n, op.x.dtype(), x.is_16_byte_aligned()?);
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("softmax_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .made(&y)
        .numbers(&params![rows, n, stride])
        .run(grid)?;
    y.tensor(op.x.dims())
}
