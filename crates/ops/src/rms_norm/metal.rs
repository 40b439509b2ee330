//! Launches `kernel.metal`: a threadgroup a row, or, for the short rows of heads, a SIMD-group.

use super::RmsNormOp;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::{Error, Result};

const SOURCE: &str = kernels!();

/// As `Row` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    n: u32,
    rows: u32,
    heads: u32,
    head: u32,
    token: u32,
    residual_head: u32,
    residual_token: u32,
    eps: f32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Row {}

pub(super) fn run(op: &RmsNormOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let lines = x.lines()?;
    let (n, rows) = (lines.size, lines.tokens * lines.heads);
    let added = residual.as_ref().map_or(Ok(lines), |r| r.lines())?;
    if added.heads != lines.heads {
        return Err(Error::call("rms_norm", format!("a residual with {} heads for {}", added.heads, lines.heads)));
    }
    let kernel = Kernel::new(SOURCE, format!("rms_norm_{}", op.x.dtype()))
        .flag(Grid::is_short(n))
        .flag(op.norm.from_one)
        .flag(residual.is_some());
    let y = Call::room(&x, rows * n, op.x.dtype())?;
    let told = Row {
        n: n as u32,
        rows: rows as u32,
        heads: lines.heads as u32,
        head: lines.head as u32,
        token: lines.token as u32,
        residual_head: added.head as u32,
        residual_token: added.token as u32,
        eps: op.norm.eps,
    };
    let call = Call::new(&x, &kernel)?;
    let grid = Grid::of_rows(rows, n, call.most_threads());
    call.input(&x).input(&w).input_or(residual.as_ref(), &x).result(&y).told(&told).run(grid)?;
    y.tensor(op.x.dims())
}
