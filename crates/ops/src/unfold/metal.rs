//! Launches `kernel.metal`: a thread per four adjacent elements of a token's windows.

use super::UnfoldOp;
use crate::Result;
use crate::ladder::Op;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &UnfoldOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, (dims, dtype)) = (x.rows()?, op.out());
    let y = Call::alloc(&x, rows.rows * dims[1], dtype)?;
    // The start of each sequence, then the number of tokens: without gaps, each sequence ends where
    // the next starts.
    let starts: Vec<u32> = op
        .segments
        .lengths(op.scope)
        .iter()
        .map(|range| range.start as u32)
        .chain([op.segments.tokens() as u32])
        .collect();
    // The fields of `Windows` in the kernel.
    let params = params![rows.cols, rows.stride, op.width, op.segments.count()];
    let kernel = Kernel::new(SOURCE, format!("unfold_{dtype}"));
    Call::new(&x, &kernel)?
        .input(&x)
        .array(&starts)?
        .result(&y)
        .numbers(&params)
        .run(Grid::over(dims[1].div_ceil(4), rows.rows))?;
    y.tensor(&dims)
}
