//! Launches `kernel.metal`: a thread for four pairs of a head, and one for four elements that stay as they are.

use super::RotaryOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};

const SOURCE: &str = kernels!();

/// As `Heads` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Heads {
    heads: u32,
    size: u32,
    token: u32,
    head: u32,
    pairs: u32,
    positions: u32,
    turning: u32,
    threads: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Heads {}

pub(super) fn run(op: &RotaryOp) -> Result<candle_core::Tensor> {
    let (x, positions) = (View::of(&op.x)?, View::whole(&op.positions)?);
    let (cos, sin) = (View::whole(&op.rotary.cos)?, View::whole(&op.rotary.sin)?);
    let (lines, table) = (x.lines()?, cos.rows()?);
    let turning = table.cols.div_ceil(4);
    let threads = turning + (lines.size - 2 * table.cols).div_ceil(4);
    let told = Heads {
        heads: lines.heads as u32,
        size: lines.size as u32,
        token: lines.token as u32,
        head: lines.head as u32,
        pairs: table.cols as u32,
        positions: table.rows as u32,
        turning: turning as u32,
        threads: threads as u32,
    };
    let y = Call::room(&x, lines.tokens * lines.heads * lines.size, op.x.dtype())?;
    let kernel = Kernel::new(SOURCE, format!("rotary_{}", op.x.dtype()));
    Call::new(&x, &kernel)?
        .input(&x)
        .input(&positions)
        .input(&cos)
        .input(&sin)
        .result(&y)
        .told(&told)
        .run(Grid::over(lines.heads * threads, lines.tokens))?;
    y.tensor(op.x.dims())
}
