//! Launches `kernel.cu`: a block a part of a row, and then a warp a row, or a block where a token is drawn.

use super::SampleOp;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::{DType, Result};

const BINARY: Binary = binary!("sample");

/// Groups of a part, and tokens of a part: see the kernel.
const GROUPS: usize = 128;
const PART: usize = 32 * GROUPS;

/// Warps of a block that has a row for each.
const WARPS: usize = 4;

/// Threads of a block that draws.
const THREADS: usize = 1024;

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, dtype) = (x.rows()?, op.x.dtype());
    let (n, stride, rows) = (rows.cols, rows.stride, rows.rows);
    let parts = n.div_ceil(PART);
    let y = Call::room(&x, rows, DType::U32)?;
    // Places of eight bytes.
    let bests = Call::room(&x, 2 * rows * parts, DType::U32)?;
    let kind = if x.in_sixteens()? { "runs" } else { "odd" };
    let first = Call::new(&x, &Kernel::new(BINARY, format!("sample_parts_{kind}_{dtype}")))?.input(&x);
    let each_part = Grid { blocks: [rows, parts, 1], threads: GROUPS };
    if op.how.iter().all(|how| how.temperature == 0.0) {
        // Nothing is told but shapes, so that a step of decoding is the same each time.
        first.maybe(None).made(&bests).maybe(None).maybe(None).u32(n).u32(stride).run(each_part)?;
        Call::new(&x, &Kernel::new(BINARY, "sample_best"))?
            .made(&bests)
            .made(&y)
            .u32(rows)
            .u32(parts)
            .run(Grid::of(rows.div_ceil(WARPS), 32 * WARPS))?;
        return y.tensor(&[rows]);
    }
    let how = op.words();
    let groups = Call::room(&x, 2 * rows * parts * GROUPS, DType::U32)?;
    let sums = Call::room(&x, rows * parts, DType::F32)?;
    first.array(&how)?.made(&bests).made(&groups).made(&sums).u32(n).u32(stride).run(each_part)?;
    Call::new(&x, &Kernel::new(BINARY, format!("sample_draw_{kind}_{dtype}")))?
        .input(&x)
        .array(&how)?
        .made(&bests)
        .made(&groups)
        .made(&sums)
        .made(&y)
        .numbers(&params![n, stride, parts])
        .run(Grid::of(rows, THREADS))?;
    y.tensor(&[rows])
}
