//! Launches `kernel.metal`: a thread for four neighbours of a token's windows.

use super::UnfoldOp;
use crate::Result;
use crate::ladder::Op;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};

const SOURCE: &str = kernels!();

/// As `Windows` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Windows {
    n: u32,
    stride: u32,
    width: u32,
    sequences: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Windows {}

pub(super) fn run(op: &UnfoldOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, (dims, dtype)) = (x.rows()?, op.out());
    let y = Call::room(&x, rows.rows * dims[1], dtype)?;
    // One behind another without gaps, so that where each ends is where the next starts.
    let starts: Vec<u32> = op
        .segments
        .lengths(op.scope)
        .iter()
        .map(|range| range.start as u32)
        .chain([op.segments.tokens() as u32])
        .collect();
    let told = Windows {
        n: rows.cols as u32,
        stride: rows.stride as u32,
        width: op.width as u32,
        sequences: op.segments.count() as u32,
    };
    let kernel = Kernel::new(SOURCE, format!("unfold_{dtype}"));
    Call::new(&x, &kernel)?
        .input(&x)
        .array(&starts)?
        .result(&y)
        .told(&told)
        .run(Grid::over(dims[1].div_ceil(4), rows.rows))?;
    y.tensor(&dims)
}
