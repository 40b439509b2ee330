//! Launches `kernel.cu`: a block per sequence and direction.

use super::LstmOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::BatchLayout;
use crate::segments::Lengths;

const BINARY: Binary = binary!("lstm");

/// Threads of a block in the kernel, and most slices of h: more would cost more to add than they
/// save.
const MAX_THREADS: usize = 1024;
const MAX_SLICES: usize = 8;

pub(super) fn run(op: &LstmOp) -> Result<candle_core::Tensor> {
    let (x, w, n) = (View::of(&op.x)?, View::whole(&op.recurrent)?, op.hidden);
    let (rows, tokens, sequences) = (x.rows()?, op.segments.tokens(), op.segments.count());
    let units = n.next_multiple_of(32);
    let slices = (MAX_THREADS / units).clamp(1, MAX_SLICES);
    let y = Call::alloc(&x, tokens * 2 * n, op.x.dtype())?;
    let words = words(op.segments.lengths(op.scope));
    let call = Call::new(&x, &Kernel::new(BINARY, format!("lstm_{}", op.x.dtype())))?.input(&x).input(&w);
    let is_given = |given: &BatchLayout| op.segments.is(&given.segments);
    let scope = op.scope;
    let recompute = move |given: &BatchLayout| Some(self::words(given.segments.lengths(scope)));
    call.dynamic_array(&words, is_given, |_| "lstm".to_string(), |_| Box::new(recompute))?
        .made(&y)
        .numbers(&params![n, rows.stride, units])
        .run(Grid { blocks: [sequences, 2, 1], threads: units * slices })?;
    y.tensor(&[tokens, 2 * n])
}

/// The rows of each sequence.
fn words(segments: &Lengths) -> Vec<u32> {
    segments.iter().flat_map(|range| [range.start as u32, range.end as u32]).collect()
}
