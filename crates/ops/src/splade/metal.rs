//! Launches `kernel.metal`: a threadgroup per sequence and block of the vocabulary. Sequences
//! follow each other, so that the rows of W which they share stay in a cache.

use super::SpladeOp;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Result};

const SOURCE: &str = kernels!();

pub(super) fn run(op: &SpladeOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(op.weight.data()?)?);
    let bias = op.bias.as_ref().map(View::whole).transpose()?;
    let (sequences, n) = (op.segments.count(), op.weight.n());
    let ranges: Vec<u32> = op.segments.lengths(op.scope).iter().flat_map(|r| [r.start as u32, r.end as u32]).collect();
    // Short sequences would leave most of a large tile empty.
    let side = if op.segments.lengths(op.scope).longest() > 32 { 64 } else { 32 };
    let kernel = Kernel::new(SOURCE, format!("splade_tile{side}_{}", op.x.dtype()))
        .flag(bias.is_some())
        .flag(op.options.sum)
        .flag(op.options.twice)
        .flag(x.in_fours()? && w.in_fours()?);
    // The fields of `Vocabulary` in the kernel.
    let params = params![n, op.weight.k(), x.rows()?.stride];
    let y = Call::alloc(&x, sequences * n, DType::F32)?;
    Call::new(&x, &kernel)?
        .input(&x)
        .input(&w)
        .input_or(bias.as_ref(), &x)
        .result(&y)
        .array(&ranges)?
        .numbers(&params)
        .run(Grid { groups: [sequences, n.div_ceil(side), 1], threads: 128 })?;
    y.tensor(&[sequences, n])
}
