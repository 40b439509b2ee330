//! Launches `kernel.metal`: a thread for four neighbours of a row.

use super::{Gate, GluOp};
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};

const SOURCE: &str = kernels!();

/// As `Halves` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Halves {
    n: u32,
    stride: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Halves {}

pub(super) fn run(op: &GluOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, n) = (x.rows()?, op.half());
    let y = Call::room(&x, rows.rows * n, op.x.dtype())?;
    let kernel =
        Kernel::new(SOURCE, format!("glu_{}", op.x.dtype())).number(op.activation as u16).flag(op.gate == Gate::Second);
    let told = Halves { n: n as u32, stride: rows.stride as u32 };
    Call::new(&x, &kernel)?.input(&x).result(&y).told(&told).run(Grid::over(n.div_ceil(4), rows.rows))?;
    y.tensor(&[rows.rows, n])
}
