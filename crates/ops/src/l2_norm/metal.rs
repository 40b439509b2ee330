//! Launches `kernel.metal`: a threadgroup a row, or, where rows are short, a SIMD-group.

use super::{L2NormOp, LEAST};
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};

const SOURCE: &str = kernels!();

/// As `Row` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    n: u32,
    rows: u32,
    stride: u32,
    least: f32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Row {}

pub(super) fn run(op: &L2NormOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let rows = x.rows()?;
    let (n, rows, stride) = (rows.cols, rows.rows, rows.stride);
    let kernel = Kernel::new(SOURCE, format!("l2_norm_{}", op.x.dtype())).flag(Grid::is_short(n));
    let y = Call::room(&x, rows * n, op.x.dtype())?;
    let told = Row { n: n as u32, rows: rows as u32, stride: stride as u32, least: LEAST };
    let call = Call::new(&x, &kernel)?;
    let grid = Grid::of_rows(rows, n, call.most_threads());
    call.input(&x).result(&y).told(&told).run(grid)?;
    y.tensor(op.x.dims())
}
