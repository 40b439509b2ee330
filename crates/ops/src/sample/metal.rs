//! Launches `kernel.metal`: a threadgroup a row.

use super::SampleOp;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Result};

const SOURCE: &str = kernels!();

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let rows = x.rows()?;
    let y = Call::room(&x, rows.rows, DType::U32)?;
    // As `Shape` in the kernel.
    let told = params![rows.cols, rows.stride];
    let how = op.words();
    let kernel = Kernel::new(SOURCE, format!("sample_{}", op.x.dtype()));
    let call = Call::new(&x, &kernel)?;
    // A power of two, which what is sorted has to be.
    let most = 1 << call.most_threads().ilog2();
    let threads = rows.cols.div_ceil(4).next_power_of_two().clamp(32, most);
    call.input(&x).result(&y).numbers(&told).array(&how)?.run(Grid { groups: [rows.rows, 1, 1], threads })?;
    y.tensor(&[rows.rows])
}
