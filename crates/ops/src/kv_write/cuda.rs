//! Launches `kernel.cu`, which writes directly into the cache's memory.

use super::copy::CopyOp;
use super::{KvWriteOp, RotaryQueries};
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::launch::strided::Lines;
use crate::{Error, Result};

const BINARY: Binary = binary!("kv_write");

pub(super) fn run(op: &KvWriteOp) -> Result<candle_core::Tensor> {
    launch(op, None)?;
    op.written_keys()
}

/// Rotates the queries, which it returns, and the keys; writes keys and values to the cache.
pub(crate) fn rotary_kv_write(op: &KvWriteOp, rotary: &RotaryQueries<'_>) -> Result<candle_core::Tensor> {
    let q = View::of(rotary.q)?;
    let y = Call::alloc(&q, q.elements(), rotary.q.dtype())?;
    launch(op, Some(&RotaryArgs::of(rotary, &q, &y)?))?;
    y.tensor(rotary.q.dims())
}

/// Kernel arguments of the rotation.
struct RotaryArgs<'a> {
    q: &'a View,
    positions: View,
    cosines: View,
    sines: View,
    y: &'a DeviceBuffer,
    of_q: Lines,
    /// Positions of the tables, and pairs per head.
    table: [usize; 2],
}

impl<'a> RotaryArgs<'a> {
    fn of(rotary: &RotaryQueries<'_>, q: &'a View, y: &'a DeviceBuffer) -> Result<RotaryArgs<'a>> {
        let (positions, cosines) = (View::whole(rotary.positions)?, View::whole(rotary.cosines)?);
        let (of_q, table) = (q.lines()?, cosines.rows()?);
        let table = [table.rows, table.cols];
        Ok(RotaryArgs { q, positions, cosines, sines: View::whole(rotary.sines)?, y, of_q, table })
    }
}

/// One thread per run of neighbouring elements of a head.
fn launch(op: &KvWriteOp, rotary: Option<&RotaryArgs<'_>>) -> Result<()> {
    let ([k, v], rows) = (&op.x, View::whole(&op.rows)?);
    let (k, v) = (View::of(k)?, View::of(v)?);
    let mut layouts = [k.lines()?, v.lines()?];
    // Contiguous heads are treated as one long head.
    if rotary.is_none() && layouts.iter().all(|lines| lines.head == lines.size) {
        layouts = layouts.map(|lines| Lines { heads: 1, size: lines.heads * lines.size, head: 0, ..lines });
    }
    let [of_k, of_v] = layouts;
    let Lines { tokens, heads, size, .. } = of_k;
    let of_q = rotary.map_or(Lines { heads: 0, ..of_k }, |rotary| rotary.of_q);
    let [positions, pairs] = rotary.map_or([0; 2], |rotary| rotary.table);
    let [keys, values] = op.cache_views(View::whole)?;
    let run = 16 / k.dtype().size();
    let strides = [of_q, of_k, of_v].map(|lines| [lines.token, if lines.heads == 1 { 0 } else { lines.head }]);
    let starts = rotary.map_or([0; 3], |rotary| [rotary.q.start, rotary.cosines.start, rotary.sines.start]);
    let offsets_and_sizes = [k.start, v.start, keys[0].start, values[0].start, size, pairs];
    let is_aligned = |i: &usize| i.is_multiple_of(run);
    let aligned =
        strides.as_flattened().iter().all(is_aligned) && starts.iter().chain(&offsets_and_sizes).all(is_aligned);
    let (kind, run) = if aligned { ("aligned", run) } else { ("unaligned", 1) };

    let kernel = Kernel::new(BINARY, format!("kv_write_{kind}_{}_in_{}", k.dtype(), op.cache[0].format()));
    let call = Call::new(&k, &kernel)?;
    let call = keys.iter().zip(&values).fold(call, |call, (keys, values)| call.changed(keys).changed(values));
    let call = call.optional_input(rotary.map(|rotary| rotary.q)).input(&k).input(&v);
    let call = call.optional_input(rotary.map(|rotary| &rotary.positions));
    let call = call
        .optional_input(rotary.map(|rotary| &rotary.cosines))
        .optional_input(rotary.map(|rotary| &rotary.sines))
        .input(&rows);
    let call = match rotary {
        Some(rotary) => call.made(rotary.y),
        None => call.optional_input(None),
    };
    let call = call.numbers(&params![of_q.heads, heads, size]);
    let call = strides.as_flattened().iter().fold(call, |call, step| call.u32(*step));
    let threads = (of_q.heads + 2 * heads) * (size / run);
    call.numbers(&params![op.cache[0].dims()[0], pairs, positions]).run(Grid::along(tokens, threads))
}

/// One thread per word of a row; words are as large as the rows' size and alignment allow.
pub(super) fn copy(op: &CopyOp) -> Result<candle_core::Tensor> {
    let (cache, from, to) = (View::whole(&op.cache)?, View::whole(&op.from)?, View::whole(&op.to)?);
    let [row_count, ref row @ ..] = *op.cache.dims() else {
        return Err(Error::call("kv_write", "the KV cache has no rows"));
    };
    let size = op.cache.dtype().size();
    let (bytes, start) = (row.iter().product::<usize>() * size, cache.start * size);
    let fits = |word: &usize| bytes.is_multiple_of(*word) && start.is_multiple_of(*word);
    let word = [16, 4].into_iter().find(fits).unwrap_or(2);
    let words = bytes / word;
    Call::new(&cache, &Kernel::new(BINARY, format!("kv_write_copies_{word}")))?
        .changed(&cache)
        .input(&from)
        .input(&to)
        .numbers(&params![words, row_count, from.elements()])
        .run(Grid::of(words.div_ceil(64), 64))?;
    Ok(op.cache.candle()?.clone())
}
