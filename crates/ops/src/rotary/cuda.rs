//! Launches `kernel.cu`: one thread per run of pairs of a head, or per run of elements that are not
//! rotated.

use super::RotaryOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;

const BINARY: Binary = binary!("rotary");

pub(super) fn run(op: &RotaryOp) -> Result<candle_core::Tensor> {
    let (x, positions) = (View::of(&op.x)?, View::whole(&op.positions)?);
    let (cosines, sines) = (View::whole(&op.rotary.cos)?, View::whole(&op.rotary.sin)?);
    let (layout, table) = (x.lines()?, cosines.rows()?);
    let run = 16 / op.x.dtype().size();
    let steps = [layout.size, layout.token, layout.head, table.cols, x.start, cosines.start, sines.start];
    let (kind, run) = if steps.iter().all(|i| i.is_multiple_of(run)) { ("aligned", run) } else { ("unaligned", 1) };
    let threads = layout.heads * ((layout.size - table.cols) / run);
    let y = Call::alloc(&x, layout.tokens * layout.heads * layout.size, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("rotary_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .input(&positions)
        .input(&cosines)
        .input(&sines)
        .made(&y)
        .numbers(&params![layout.heads, layout.size, layout.token, layout.head, table.cols, table.rows])
        .run(Grid::along(layout.tokens, threads))?;
    y.tensor(op.x.dims())
}
