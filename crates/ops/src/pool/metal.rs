//! Launches `kernel.metal`: a threadgroup for 128 columns of a sequence, all modes at once.

use super::{PoolOp, Pooling};
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::{DType, Result};

const SOURCE: &str = kernels!();

/// SIMD-groups of a threadgroup that the kernel has room for.
const MOST_SIMDS: usize = 8;

/// As `Columns` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Columns {
    n: u32,
    stride: u32,
    modes: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Columns {}

pub(super) fn run(op: &PoolOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, modes, sequences) = (x.rows()?, op.modes.len(), op.segments.count());
    let has = |wanted: &[Pooling]| op.modes.iter().any(|mode| wanted.contains(mode));
    let kernel = Kernel::new(SOURCE, format!("pool_{}", op.x.dtype()))
        .flag(has(&[Pooling::Mean, Pooling::MeanSqrtLen]))
        .flag(has(&[Pooling::WeightedMean]))
        .flag(has(&[Pooling::Max]));
    let y = Call::room(&x, sequences * modes * rows.cols, DType::F32)?;
    let told = Columns { n: rows.cols as u32, stride: rows.stride as u32, modes: modes as u32 };
    // As `Sequence` in the kernel.
    let sequence = |i: usize| [op.rows(i).start as u32, op.rows(i).end as u32, op.skip[i] as u32];
    let ranges: Vec<u32> = (0..sequences).flat_map(sequence).collect();
    let numbers: Vec<u32> = op.modes.iter().map(|mode| *mode as u32).collect();
    let longest = (0..sequences).map(|i| op.rows(i).len()).max().unwrap_or(0);
    let call = Call::new(&x, &kernel)?.input(&x).array(&ranges)?.array(&numbers)?.result(&y).told(&told);
    // A few tokens each, or they would rather wait for one another than read.
    let simds = longest.div_ceil(4).clamp(1, MOST_SIMDS.min(call.most_threads() / 32));
    call.run(Grid { groups: [rows.cols.div_ceil(4 * 32), sequences, 1], threads: 32 * simds })?;
    y.tensor(&[sequences, modes * rows.cols])
}
