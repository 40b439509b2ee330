//! Launches `kernel.metal`: a threadgroup per row, or a SIMD-group if rows are short.

use super::SoftmaxOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &SoftmaxOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let rows = x.rows()?;
    let (n, rows, stride) = (rows.cols, rows.rows, rows.stride);
    let kernel = Kernel::new(SOURCE, format!("softmax_{}", op.x.dtype())).flag(Grid::is_short(n));
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    // The fields of `Row` in the kernel.
    let params = params![n, rows, stride];
    let call = Call::new(&x, &kernel)?;
    let grid = Grid::of_rows(rows, n, call.most_threads());
    call.input(&x).result(&y).numbers(&params).run(grid)?;
    y.tensor(op.x.dims())
}
