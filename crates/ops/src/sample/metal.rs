//! Launches `kernel.metal`: a threadgroup per row.

use super::SampleOp;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Result};

const SOURCE: &str = kernels!();

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let rows = x.rows()?;
    let y = Call::alloc(&x, rows.rows, DType::U32)?;
    // As `Shape` in the kernel.
    let shape = params![rows.cols, rows.stride];
    let params = op.param_words();
    let kernel = Kernel::new(SOURCE, format!("sample_{}", op.x.dtype()));
    let call = Call::new(&x, &kernel)?;
    // A power of two, as the kernel's sort requires.
    let max_threads = 1 << call.most_threads().ilog2();
    let threads = rows.cols.div_ceil(4).next_power_of_two().clamp(32, max_threads);
    call.input(&x).result(&y).numbers(&shape).array(&params)?.run(Grid { groups: [rows.rows, 1, 1], threads })?;
    y.tensor(&[rows.rows])
}
