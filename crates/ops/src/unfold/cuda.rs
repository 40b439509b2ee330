//! Launches `kernel.cu`: a thread per 16 bytes of a token's windows.

use super::UnfoldOp;
use crate::ladder::Op;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::{BatchLayout, OpScope, Recompute};
use crate::{Error, Result, Segments};

const BINARY: Binary = binary!("unfold");

pub(super) fn run(op: &UnfoldOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let (rows, (dims, dtype)) = (x.rows()?, op.out());
    let size = dims[1];
    if u32::try_from(size).is_err() {
        return Err(Error::call("unfold", format!("windows of {size} elements")));
    }
    let y = Call::alloc(&x, rows.rows * size, dtype)?;
    let run = 16 / dtype.size();
    let (kind, run) = if size.is_multiple_of(run) { ("aligned", run) } else { ("unaligned", 1) };
    let call = Call::new(&x, &Kernel::new(BINARY, format!("unfold_{kind}_{dtype}")))?.input(&x);
    let is_given = |given: &BatchLayout| op.segments.is(&given.segments);
    let scope = op.scope;
    let recompute = |_: &BatchLayout| -> Recompute { Box::new(move |given| Some(starts(&given.segments, scope))) };
    call.dynamic_array(&starts(&op.segments, scope), is_given, |_| "unfold".into(), recompute)?
        .made(&y)
        .numbers(&params![rows.cols, rows.stride, op.width, op.segments.count()])
        .run(Grid::along(rows.rows, size.div_ceil(run)))?;
    y.tensor(&dims)
}

/// The start of each sequence, then the number of tokens: without gaps, each sequence ends where
/// the next starts.
fn starts(segments: &Segments, scope: OpScope) -> Vec<u32> {
    segments.lengths(scope).iter().map(|range| range.start as u32).chain([segments.tokens() as u32]).collect()
}
