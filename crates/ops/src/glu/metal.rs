//! Launches `kernel.metal`: a thread per four adjacent elements of a row.

use super::{Gate, GluOp};
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, n) = (x.rows()?, op.half());
    let y = Call::alloc(&x, rows.rows * n, op.x.dtype())?;
    let kernel =
        Kernel::new(SOURCE, format!("glu_{}", op.x.dtype())).number(op.activation as u16).flag(op.gate == Gate::Second);
    // The fields of `Halves` in the kernel.
    let params = params![n, rows.stride];
    Call::new(&x, &kernel)?.input(&x).result(&y).numbers(&params).run(Grid::over(n.div_ceil(4), rows.rows))?;
    y.tensor(&[rows.rows, n])
}
