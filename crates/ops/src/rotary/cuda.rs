//! Launches `kernel.cu`: a thread for a run of pairs of a head, or for a run of elements that stay as they are.

use super::RotaryOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;

const BINARY: Binary = binary!("rotary");

pub(super) fn run(op: &RotaryOp) -> Result<candle_core::Tensor> {
    let (x, positions) = (View::of(&op.x)?, View::whole(&op.positions)?);
    let (cosines, sines) = (View::whole(&op.rotary.cos)?, View::whole(&op.rotary.sin)?);
    let (lines, table) = (x.lines()?, cosines.rows()?);
    let run = 16 / op.x.dtype().size();
    let steps = [lines.size, lines.token, lines.head, table.cols, x.start, cosines.start, sines.start];
    let (kind, run) = if steps.iter().all(|i| i.is_multiple_of(run)) { ("runs", run) } else { ("odd", 1) };
    let threads = lines.heads * ((lines.size - table.cols) / run);
    let y = Call::room(&x, lines.tokens * lines.heads * lines.size, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("rotary_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .input(&positions)
        .input(&cosines)
        .input(&sines)
        .made(&y)
        .numbers(&params![lines.heads, lines.size, lines.token, lines.head, table.cols, table.rows])
        .run(Grid::along(lines.tokens, threads))?;
    y.tensor(op.x.dims())
}
