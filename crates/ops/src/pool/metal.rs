//! Launches `kernel.metal`: a threadgroup per 128 columns of a sequence, all modes at once.

use super::{PoolOp, Pooling};
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Result};

const SOURCE: &str = kernels!();

/// Most SIMD-groups of a threadgroup in the kernel.
const MAX_SIMDS: usize = 8;

pub(super) fn run(op: &PoolOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, modes, sequences) = (x.rows()?, op.modes.len(), op.segments.count());
    let has = |wanted: &[Pooling]| op.modes.iter().any(|mode| wanted.contains(mode));
    let kernel = Kernel::new(SOURCE, format!("pool_{}", op.x.dtype()))
        .flag(has(&[Pooling::Mean, Pooling::MeanSqrtLen]))
        .flag(has(&[Pooling::WeightedMean]))
        .flag(has(&[Pooling::Max]));
    let y = Call::alloc(&x, sequences * modes * rows.cols, DType::F32)?;
    // The fields of `Columns` in the kernel.
    let params = params![rows.cols, rows.stride, modes];
    // The fields of `Sequence` in the kernel.
    let sequence = |i: usize| [op.rows(i).start as u32, op.rows(i).end as u32, op.skip[i] as u32];
    let ranges: Vec<u32> = (0..sequences).flat_map(sequence).collect();
    let numbers: Vec<u32> = op.modes.iter().map(|mode| *mode as u32).collect();
    let longest = (0..sequences).map(|i| op.rows(i).len()).max().unwrap_or(0);
    let call = Call::new(&x, &kernel)?.input(&x).array(&ranges)?.array(&numbers)?.result(&y).numbers(&params);
    // A few tokens per SIMD-group: with fewer, synchronization would cost more than the reads.
    let simds = longest.div_ceil(4).clamp(1, MAX_SIMDS.min(call.most_threads() / 32));
    call.run(Grid { groups: [rows.cols.div_ceil(4 * 32), sequences, 1], threads: 32 * simds })?;
    y.tensor(&[sequences, modes * rows.cols])
}
