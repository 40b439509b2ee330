//! Launches `kernel.cu`: a thread per 16 bytes of a row, or per element if its halves are not whole
//! runs of 16 bytes.

use super::{Gate, GluOp};
use crate::Result;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;

const BINARY: Binary = binary!("glu");

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let scales = op.scales.as_ref().map(View::whole).transpose()?;
    let (rows, n, dtype) = (x.rows()?, op.width(), op.x.dtype());
    let halves = match op.gate {
        None => 0,
        Some(Gate::First) => 1,
        Some(Gate::Second) => 2,
    };
    let y = Call::alloc(&x, rows.rows * n, dtype)?;
    let run = 16 / dtype.size();
    let in_runs = [n, rows.stride, x.start].iter().all(|i| i.is_multiple_of(run));
    let (kind, run) = if in_runs { ("aligned", run) } else { ("unaligned", 1) };
    Call::new(&x, &Kernel::new(BINARY, format!("glu_{kind}_{dtype}")))?
        .input(&x)
        .optional_input(scales.as_ref())
        .made(&y)
        .numbers(&params![n, rows.stride, op.activation as usize, halves])
        .run(Grid::along(rows.rows, n.div_ceil(run)))?;
    y.tensor(&[rows.rows, n])
}
