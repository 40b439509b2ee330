//! Launches a block per sequence and block of the vocabulary: `kernel.cu` on tensor cores for f16
//! and bf16, `simt.cu` for f32 and for unaligned rows. Sequences follow each other, so that the
//! rows of W which they share stay in a cache.

use super::SpladeOp;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::BatchLayout;
use crate::segments::Lengths;
use crate::{DType, Result};

const TILES: Binary = binary!("splade");
const SIMT: Binary = binary!("splade_simt");

/// Columns of a block in either kernel.
const COLUMNS: usize = 128;
const SIMT_COLUMNS: usize = 64;

/// Bytes of a row of a tile, and number of tiles in flight or in use: `DEEP` and `STAGES` in the
/// kernel.
const DEEP: usize = 64;
const STAGES: usize = 4;

pub(super) fn run(op: &SpladeOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(op.weight.data()?)?);
    let bias = op.bias.as_ref().map(View::whole).transpose()?;
    let (sequences, n, dtype) = (op.segments.count(), op.weight.n(), op.x.dtype());
    let y = Call::alloc(&x, sequences * n, DType::F32)?;
    let is_tiled = dtype != DType::F32 && x.is_16_byte_aligned()? && w.is_16_byte_aligned()?;
    let (kernel, columns) = if is_tiled {
        // Short sequences would leave most of a large tile empty.
        let rows = match op.segments.bound(op.scope) {
            ..=32 => 32,
            33..=64 => 64,
            _ => 128,
        };
        let kernel = Kernel::new(TILES, format!("splade_{rows}_{dtype}"));
        (kernel.shared(STAGES * DEEP * (rows + COLUMNS)), COLUMNS)
    } else {
        (Kernel::new(SIMT, format!("splade_{dtype}")), SIMT_COLUMNS)
    };
    let call = Call::new(&x, &kernel)?.input(&x).input(&w).optional_input(bias.as_ref()).made(&y);
    let (scope, bound) = (op.scope, op.segments.bound(op.scope));
    let is_given = |given: &BatchLayout| op.segments.is(&given.segments);
    let recompute = move |given: &BatchLayout| {
        (given.segments.bound(scope) == bound).then(|| ranges(given.segments.lengths(scope)))
    };
    let words = ranges(op.segments.lengths(scope));
    call.dynamic_array(&words, is_given, |_| "splade".into(), |_| Box::new(recompute))?
        .numbers(&params![n, op.weight.k(), x.rows()?.stride, op.options.sum, op.options.twice])
        .run(Grid { blocks: [sequences, n.div_ceil(columns), 1], threads: 256 })?;
    y.tensor(&[sequences, n])
}

/// Start and end of each sequence.
fn ranges(segments: &Lengths) -> Vec<u32> {
    segments.iter().flat_map(|range| [range.start as u32, range.end as u32]).collect()
}
