//! Launches `kernel.metal`: a threadgroup per row, or a SIMD-group for the short rows of heads.

use super::RmsNormOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &RmsNormOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let [lines, added] = x.lines_with("rms_norm", residual.as_deref())?;
    let (n, rows) = (lines.size, lines.tokens * lines.heads);
    let kernel = Kernel::new(SOURCE, format!("rms_norm_{}", op.x.dtype()))
        .flag(Grid::is_short(n))
        .flag(op.norm.from_one)
        .flag(residual.is_some());
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    // The fields of `Row` in the kernel.
    let params = params![n, rows, lines.heads, lines.head, lines.token, added.head, added.token, op.norm.eps];
    let call = Call::new(&x, &kernel)?;
    let grid = Grid::of_rows(rows, n, call.most_threads());
    call.input(&x).input(&w).input_or(residual.as_ref(), &x).result(&y).numbers(&params).run(grid)?;
    y.tensor(op.x.dims())
}
