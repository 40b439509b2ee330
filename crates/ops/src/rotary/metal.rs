//! Launches `kernel.metal`: a thread for four pairs of a head, and one for four elements that stay as they are.

use super::RotaryOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &RotaryOp) -> Result<candle_core::Tensor> {
    let (x, positions) = (View::of(&op.x)?, View::whole(&op.positions)?);
    let (cos, sin) = (View::whole(&op.rotary.cos)?, View::whole(&op.rotary.sin)?);
    let (lines, table) = (x.lines()?, cos.rows()?);
    let turning = table.cols.div_ceil(4);
    let threads = turning + (lines.size - 2 * table.cols).div_ceil(4);
    // As `Heads` in the kernel.
    let told = params![lines.heads, lines.size, lines.token, lines.head, table.cols, table.rows, turning, threads];
    let y = Call::room(&x, lines.tokens * lines.heads * lines.size, op.x.dtype())?;
    let kernel = Kernel::new(SOURCE, format!("rotary_{}", op.x.dtype()));
    Call::new(&x, &kernel)?
        .input(&x)
        .input(&positions)
        .input(&cos)
        .input(&sin)
        .result(&y)
        .numbers(&told)
        .run(Grid::over(lines.heads * threads, lines.tokens))?;
    y.tensor(op.x.dims())
}
