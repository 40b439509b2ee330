//! Launches `kernel.cu`: a block for 128 columns of a sequence, all modes at once.

use super::{PoolOp, Pooling};
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::{DType, Result};

const BINARY: Binary = binary!("pool");

/// Warps of a block that the kernel has room for, and tokens that each has on the way.
const MOST_WARPS: usize = 16;
const AHEAD: usize = 4;

pub(super) fn run(op: &PoolOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, modes, sequences) = (x.rows()?, op.modes.len(), op.segments.count());
    let needs = op.modes.iter().fold(0, |needs, mode| {
        needs
            | match mode {
                Pooling::Mean | Pooling::MeanSqrtLen => 1,
                Pooling::WeightedMean => 2,
                Pooling::Max => 4,
                Pooling::Cls | Pooling::LastToken => 0,
            }
    });
    let y = Call::room(&x, sequences * modes * rows.cols, DType::F32)?;
    let sequence = |i: usize| [op.rows(i).start as u32, op.rows(i).end as u32, op.skip[i] as u32];
    let told: Vec<u32> = (0..sequences).flat_map(sequence).chain(op.modes.iter().map(|mode| *mode as u32)).collect();
    let longest = (0..sequences).map(|i| op.rows(i).len()).max().unwrap_or(0);
    // A few tokens each, or they would rather wait for one another than read.
    let warps = if needs == 0 { 1 } else { longest.div_ceil(AHEAD).clamp(1, MOST_WARPS) };
    let (kind, run) = if x.in_fours()? { ("fours", 4) } else { ("odd", 1) };
    Call::new(&x, &Kernel::new(BINARY, format!("pool_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .array(&told)?
        .made(&y)
        .u32(rows.cols)
        .u32(rows.stride)
        .u32(modes)
        .u32(needs)
        .run(Grid { blocks: [sequences, rows.cols.div_ceil(run * 32), 1], threads: 32 * warps })?;
    y.tensor(&[sequences, modes * rows.cols])
}
