//! Launches `kernel.cu`: first a block per part of a row; then a warp per row (greedy), or a block
//! per row where a token is drawn.

use super::SampleOp;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::{DType, Result};

const BINARY: Binary = binary!("sample");

/// Groups per part, and tokens per part: see the kernel.
const GROUPS: usize = 128;
const PART: usize = 32 * GROUPS;

/// Warps per block, each with a row of its own.
const WARPS: usize = 4;

/// Threads of a block that draws a token.
const THREADS: usize = 1024;

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, dtype) = (x.rows()?, op.x.dtype());
    let (n, stride, rows) = (rows.cols, rows.stride, rows.rows);
    let parts = n.div_ceil(PART);
    let y = Call::alloc(&x, rows, DType::U32)?;
    // Rank keys of eight bytes.
    let bests = Call::alloc(&x, 2 * rows * parts, DType::U32)?;
    let kind = if x.is_16_byte_aligned()? { "aligned" } else { "unaligned" };
    let first = Call::new(&x, &Kernel::new(BINARY, format!("sample_parts_{kind}_{dtype}")))?.input(&x);
    let each_part = Grid { blocks: [rows, parts, 1], threads: GROUPS };
    if op.params.iter().all(|params| params.temperature == 0.0) {
        // Greedy decoding passes nothing but shapes, so that a captured CUDA graph serves every
        // decode step.
        first
            .optional_input(None)
            .made(&bests)
            .optional_input(None)
            .optional_input(None)
            .u32(n)
            .u32(stride)
            .run(each_part)?;
        Call::new(&x, &Kernel::new(BINARY, "sample_argmax"))?
            .made(&bests)
            .made(&y)
            .u32(rows)
            .u32(parts)
            .run(Grid::of(rows.div_ceil(WARPS), 32 * WARPS))?;
        return y.tensor(&[rows]);
    }
    let params = op.param_words();
    let groups = Call::alloc(&x, 2 * rows * parts * GROUPS, DType::U32)?;
    let sums = Call::alloc(&x, rows * parts, DType::F32)?;
    first.array(&params)?.made(&bests).made(&groups).made(&sums).u32(n).u32(stride).run(each_part)?;
    Call::new(&x, &Kernel::new(BINARY, format!("sample_draw_{kind}_{dtype}")))?
        .input(&x)
        .array(&params)?
        .made(&bests)
        .made(&groups)
        .made(&sums)
        .made(&y)
        .numbers(&params![n, stride, parts])
        .run(Grid::of(rows, THREADS))?;
    y.tensor(&[rows])
}
