//! Launches `kernel.metal`: a thread per four adjacent elements of a row.

use super::{Gate, GluOp};
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let scales = op.scales.as_ref().map(View::whole).transpose()?;
    let (rows, n) = (x.rows()?, op.width());
    let y = Call::alloc(&x, rows.rows * n, op.x.dtype())?;
    let kernel = Kernel::new(SOURCE, format!("glu_{}", op.x.dtype()))
        .number(op.activation as u16)
        .flag(op.gate == Some(Gate::Second))
        .flag(scales.is_some())
        .flag(op.gate.is_some());
    // The fields of `Halves` in the kernel.
    let params = params![n, rows.stride];
    let call = Call::new(&x, &kernel)?.input(&x).input_or(scales.as_ref(), &x).result(&y).numbers(&params);
    call.run(Grid::over(n.div_ceil(4), rows.rows))?;
    y.tensor(&[rows.rows, n])
}
