//! Launches `kernel.cu`: into the cache's own memory.

use super::copy::CopyOp;
use super::{KvWriteOp, Turn};
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::launch::strided::Lines;
use crate::{Error, Result};

const BINARY: Binary = binary!("kv_write");

pub(super) fn run(op: &KvWriteOp) -> Result<candle_core::Tensor> {
    launch(op, None)?;
    op.kept()
}

/// The queries of `turn`, turned; and its keys, turned, and values in the cache.
pub(crate) fn turned(op: &KvWriteOp, turn: &Turn<'_>) -> Result<candle_core::Tensor> {
    let q = View::of(turn.q)?;
    let y = Call::room(&q, q.elements(), turn.q.dtype())?;
    launch(op, Some(&Turning::of(turn, &q, &y)?))?;
    y.tensor(turn.q.dims())
}

/// What is turned, as the kernel is told.
struct Turning<'a> {
    q: &'a View,
    positions: View,
    cosines: View,
    sines: View,
    y: &'a DeviceBuffer,
    of_q: Lines,
    /// Positions of the tables, and pairs.
    table: [usize; 2],
}

impl<'a> Turning<'a> {
    fn of(turn: &Turn<'_>, q: &'a View, y: &'a DeviceBuffer) -> Result<Turning<'a>> {
        let (positions, cosines) = (View::whole(turn.positions)?, View::whole(turn.cosines)?);
        let (of_q, table) = (q.lines()?, cosines.rows()?);
        let table = [table.rows, table.cols];
        Ok(Turning { q, positions, cosines, sines: View::whole(turn.sines)?, y, of_q, table })
    }
}

/// A thread for a run of neighbours of a head.
fn launch(op: &KvWriteOp, turn: Option<&Turning<'_>>) -> Result<()> {
    let ([k, v], rows) = (&op.x, View::whole(&op.rows)?);
    let (k, v) = (View::of(k)?, View::of(v)?);
    let mut kept = [k.lines()?, v.lines()?];
    // Heads next to each other are one long head.
    if turn.is_none() && kept.iter().all(|lines| lines.head == lines.size) {
        kept = kept.map(|lines| Lines { heads: 1, size: lines.heads * lines.size, head: 0, ..lines });
    }
    let [of_k, of_v] = kept;
    let Lines { tokens, heads, size, .. } = of_k;
    let of_q = turn.map_or(Lines { heads: 0, ..of_k }, |turn| turn.of_q);
    let [positions, pairs] = turn.map_or([0; 2], |turn| turn.table);
    let [keys, values] = op.written(View::whole)?;
    let run = 16 / k.dtype().size();
    let apart = [of_q, of_k, of_v].map(|lines| [lines.token, if lines.heads == 1 { 0 } else { lines.head }]);
    let starts = turn.map_or([0; 3], |turn| [turn.q.start, turn.cosines.start, turn.sines.start]);
    let others = [k.start, v.start, keys[0].start, values[0].start, size, pairs];
    let whole = |i: &usize| i.is_multiple_of(run);
    let in_runs = apart.as_flattened().iter().all(whole) && starts.iter().chain(&others).all(whole);
    let (kind, run) = if in_runs { ("runs", run) } else { ("odd", 1) };

    let kernel = Kernel::new(BINARY, format!("kv_write_{kind}_{}_in_{}", k.dtype(), op.cache[0].format()));
    let call = Call::new(&k, &kernel)?;
    let call = keys.iter().zip(&values).fold(call, |call, (keys, values)| call.changed(keys).changed(values));
    let call = call.maybe(turn.map(|turn| turn.q)).input(&k).input(&v);
    let call = call.maybe(turn.map(|turn| &turn.positions));
    let call = call.maybe(turn.map(|turn| &turn.cosines)).maybe(turn.map(|turn| &turn.sines)).input(&rows);
    let call = match turn {
        Some(turn) => call.made(turn.y),
        None => call.maybe(None),
    };
    let call = call.numbers(&params![of_q.heads, heads, size]);
    let call = apart.as_flattened().iter().fold(call, |call, step| call.u32(*step));
    let threads = (of_q.heads + 2 * heads) * (size / run);
    call.numbers(&params![op.cache[0].dims()[0], pairs, positions]).run(Grid::along(tokens, threads))
}

/// A thread for each word of a row, the largest that rows consist of where they lie.
pub(super) fn copy(op: &CopyOp) -> Result<candle_core::Tensor> {
    let (cache, from, to) = (View::whole(&op.cache)?, View::whole(&op.from)?, View::whole(&op.to)?);
    let [held, ref row @ ..] = *op.cache.dims() else { return Err(Error::call("kv_write", "a cache without rows")) };
    let size = op.cache.dtype().size();
    let (bytes, start) = (row.iter().product::<usize>() * size, cache.start * size);
    let fits = |word: &usize| bytes.is_multiple_of(*word) && start.is_multiple_of(*word);
    let word = [16, 4].into_iter().find(fits).unwrap_or(2);
    let words = bytes / word;
    Call::new(&cache, &Kernel::new(BINARY, format!("kv_write_copies_{word}")))?
        .changed(&cache)
        .input(&from)
        .input(&to)
        .numbers(&params![words, held, from.elements()])
        .run(Grid::of(words.div_ceil(64), 64))?;
    Ok(op.cache.candle()?.clone())
}
