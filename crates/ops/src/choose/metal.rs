//! Launches `kernel.metal`: a threadgroup a row.

use super::ChooseOp;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::{DType, Result};

const SOURCE: &str = kernels!();

/// As `Shape` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    n: u32,
    stride: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Shape {}

pub(super) fn run(op: &ChooseOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let rows = x.rows()?;
    let y = Call::room(&x, rows.rows, DType::U32)?;
    let told = Shape { n: rows.cols as u32, stride: rows.stride as u32 };
    // As `Choosing` in the kernel, word by word.
    let how = op.how.iter().flat_map(|how| {
        // A device may take what is below the normal numbers for 0, which would be another order.
        let temperature = if how.temperature > 0.0 { how.temperature.max(f32::MIN_POSITIVE) } else { 0.0 };
        let [temperature, top_p, min_p, u] = [temperature, how.top_p, how.min_p, how.u as f32].map(f32::to_bits);
        [temperature, how.top_k.unwrap_or(u32::MAX), top_p, min_p, u]
    });
    let how: Vec<u32> = how.collect();
    let kernel = Kernel::new(SOURCE, format!("choose_{}", op.x.dtype()));
    let call = Call::new(&x, &kernel)?;
    // A power of two, which what is sorted has to be.
    let most = 1 << call.most_threads().ilog2();
    let threads = rows.cols.div_ceil(4).next_power_of_two().clamp(32, most);
    call.input(&x).result(&y).told(&told).array(&how)?.run(Grid { groups: [rows.rows, 1, 1], threads })?;
    y.tensor(&[rows.rows])
}
