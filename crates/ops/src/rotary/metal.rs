//! Launches `kernel.metal`: one thread per four pairs of a head, and per four elements that are not
//! rotated.

use super::RotaryOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &RotaryOp) -> Result<candle_core::Tensor> {
    let (x, positions) = (View::of(&op.x)?, View::whole(&op.positions)?);
    let (cos, sin) = (View::whole(&op.rotary.cos)?, View::whole(&op.rotary.sin)?);
    let (layout, table) = (x.lines()?, cos.rows()?);
    let pair_threads = table.cols.div_ceil(4);
    let threads = pair_threads + (layout.size - 2 * table.cols).div_ceil(4);
    // As `Heads` in the kernel.
    let shape =
        params![layout.heads, layout.size, layout.token, layout.head, table.cols, table.rows, pair_threads, threads];
    let y = Call::alloc(&x, layout.tokens * layout.heads * layout.size, op.x.dtype())?;
    let kernel = Kernel::new(SOURCE, format!("rotary_{}", op.x.dtype()));
    Call::new(&x, &kernel)?
        .input(&x)
        .input(&positions)
        .input(&cos)
        .input(&sin)
        .result(&y)
        .numbers(&shape)
        .run(Grid::over(layout.heads * threads, layout.tokens))?;
    y.tensor(op.x.dims())
}
