//! Launches `kernel.cu`: a block per 128 columns of a sequence, all modes at once.

use super::{PoolOp, Pooling};
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::BatchLayout;
use crate::segments::Lengths;
use crate::{DType, Result};

const BINARY: Binary = binary!("pool");

/// Most warps of a block in the kernel, and tokens that each warp loads ahead.
const MAX_WARPS: usize = 16;
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
    let y = Call::alloc(&x, sequences * modes * rows.cols, DType::F32)?;
    let words = words(op.segments.lengths(op.scope), &op.skip, &op.modes);
    // A few tokens per warp: with fewer, synchronization would cost more than the reads.
    let warps = if needs == 0 { 1 } else { op.segments.bound(op.scope).div_ceil(AHEAD).clamp(1, MAX_WARPS) };
    let (kind, run) = if x.in_fours()? { ("fours", 4) } else { ("unaligned", 1) };
    let call = Call::new(&x, &Kernel::new(BINARY, format!("pool_{kind}_{}", op.x.dtype())))?.input(&x);
    let is_given = |given: &BatchLayout| op.segments.is(&given.segments) && op.skip == given.skips;
    let (captured_modes, scope, bound) = (op.modes.clone(), op.scope, op.segments.bound(op.scope));
    let recompute = move |given: &BatchLayout| {
        let is_alike = given.segments.bound(scope) == bound;
        is_alike.then(|| self::words(given.segments.lengths(scope), &given.skips, &captured_modes))
    };
    call.dynamic_array(&words, is_given, |_| format!("pool {:?}", op.modes), |_| Box::new(recompute))?
        .made(&y)
        .numbers(&params![rows.cols, rows.stride, modes, needs])
        .run(Grid { blocks: [sequences, rows.cols.div_ceil(run * 32), 1], threads: 32 * warps })?;
    y.tensor(&[sequences, modes * rows.cols])
}

/// The rows of each sequence that count and how many rows before them do not, then the modes.
fn words(segments: &Lengths, skip: &[usize], modes: &[Pooling]) -> Vec<u32> {
    let sequence = |(range, skip): (std::ops::Range<usize>, &usize)| match range.len() {
        // A filler sequence may be empty. It gets any row, because nobody reads its result.
        0 => [0, 1, 0],
        _ => [(range.start + skip) as u32, range.end as u32, *skip as u32],
    };
    segments.iter().zip(skip).flat_map(sequence).chain(modes.iter().map(|mode| *mode as u32)).collect()
}
