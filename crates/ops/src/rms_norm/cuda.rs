//! Launches `kernel.cu`: a warp per row, or a block if rows are long.

use super::RmsNormOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Kernel, View, binary, rows};
use crate::launch::params;

const BINARY: Binary = binary!("rms_norm");

pub(super) fn run(op: &RmsNormOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let [lines, added] = x.lines_with("rms_norm", residual.as_deref())?;
    let (n, rows) = (lines.size, lines.tokens * lines.heads);
    let run = 16 / op.x.dtype().size();
    let starts = [x.start, residual.as_ref().map_or(0, |r| r.start), w.start];
    let steps = [n, lines.token, lines.head, added.token, added.head];
    let in_runs = starts.iter().chain(&steps).all(|i| i.is_multiple_of(run));
    let (kind, grid) = rows::kind(rows, n, op.x.dtype(), in_runs);
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("rms_norm_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .input(&w)
        .optional_input(residual.as_ref())
        .made(&y)
        .numbers(&params![rows, n, lines.heads])
        .numbers(&params![lines.token, lines.head, added.token, added.head])
        .numbers(&params![op.norm.from_one, op.norm.eps])
        .run(grid)?;
    y.tensor(op.x.dims())
}
