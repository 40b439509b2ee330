//! Launches `kernel.metal`: a threadgroup per sequence and direction.

use super::LstmOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &LstmOp) -> Result<candle_core::Tensor> {
    let (x, w, n) = (View::of(&op.x)?, View::whole(&op.recurrent)?, op.hidden);
    let (rows, tokens, sequences) = (x.rows()?, op.segments.tokens(), op.segments.count());
    let y = Call::alloc(&x, tokens * 2 * n, op.x.dtype())?;
    let sequence = |range: std::ops::Range<usize>| [range.start as u32, range.end as u32];
    let ranges: Vec<u32> = op.segments.lengths(op.scope).iter().flat_map(sequence).collect();
    // The fields of `Layer` in the kernel.
    let params = params![n, rows.stride];
    let call = Call::new(&x, &Kernel::new(SOURCE, format!("lstm_{}", op.x.dtype())))?;
    let threads = n.next_multiple_of(32).min(call.most_threads());
    let call = call.input(&x).input(&w).array(&ranges)?.result(&y).numbers(&params);
    call.run(Grid { groups: [sequences, 2, 1], threads })?;
    y.tensor(&[tokens, 2 * n])
}
