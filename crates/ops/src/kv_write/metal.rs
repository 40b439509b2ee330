//! Launches `kernel.metal`: into the cache's own memory.

use super::copy::CopyOp;
use super::{KvCacheFormat, KvWriteOp, Turn};
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, Lines, View, kernels};
use crate::launch::params;
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

pub(super) fn run(op: &KvWriteOp) -> Result<candle_core::Tensor> {
    launch(op, None)?;
    op.kept()
}

/// The queries of `turn`, turned; and its keys, turned, and values in the cache.
pub(crate) fn turned(op: &KvWriteOp, turn: &Turn<'_>) -> Result<candle_core::Tensor> {
    let q = View::of(turn.q)?;
    let y = Call::room(&q, q.elements(), turn.q.dtype())?;
    launch(op, Some((turn, &y)))?;
    y.tensor(turn.q.dims())
}

/// A thread for four neighbours of a head.
fn launch(op: &KvWriteOp, turn: Option<(&Turn<'_>, &DeviceBuffer)>) -> Result<()> {
    let ([k, v], rows) = (&op.x, View::whole(&op.rows)?);
    let (k, v) = (View::of(k)?, View::of(v)?);
    let (of_k, of_v) = (k.lines()?, v.lines()?);
    let apart = |lines: Lines| params![lines.token, lines.head];
    let (mut queries, mut of_q, mut table) = (0, [0; 2], [0; 2]);
    let (mut heads, mut size) = (of_k.heads, of_k.size);
    let kernel = match op.cache[0].format() {
        KvCacheFormat::Float(kept) => format!("kv_write_{}_in_{kept}", k.dtype()),
        KvCacheFormat::Q8 => format!("kv_write_blocks_{}", k.dtype()),
    };
    let kernel = Kernel::new(SOURCE, kernel).flag(turn.is_some());
    let [keys, values] = op.written(View::whole)?;
    let call = Call::new(&k, &kernel)?;
    let call = if let Some((turn, y)) = turn {
        let (q, positions) = (View::of(turn.q)?, View::whole(turn.positions)?);
        let (cosines, sines) = (View::whole(turn.cosines)?, View::whole(turn.sines)?);
        let (lines, angles) = (q.lines()?, cosines.rows()?);
        (queries, of_q, table) = (lines.heads, apart(lines), params![angles.cols, angles.rows]);
        call.input(&q).input(&k).input(&v).input(&positions).input(&cosines).input(&sines).input(&rows).result(y)
    } else {
        // Heads next to each other are one long head, whose fours are cut short only once.
        if [of_k, of_v].iter().all(|lines| lines.head == lines.size) {
            (heads, size) = (1, heads * size);
        }
        // Something must stand for what the kernel does not look at.
        call.input(&k).input(&k).input(&v).input(&rows).input(&k).input(&k).input(&rows).changed(&keys[0])
    };
    let call = keys.iter().zip(&values).fold(call, |call, (keys, values)| call.changed(keys).changed(values));
    // As `Heads` in the kernel.
    let steps = [of_q, apart(of_k), apart(of_v)];
    let told =
        [&params![queries, heads, size][..], steps.as_flattened(), &params![op.cache[0].dims()[0]], &table].concat();
    call.numbers(&told).run(Grid::over((queries + 2 * heads) * size.div_ceil(4), of_k.tokens))
}

/// A thread for each word of a row.
pub(super) fn copy(op: &CopyOp) -> Result<candle_core::Tensor> {
    let (cache, from, to) = (View::whole(&op.cache)?, View::whole(&op.from)?, View::whole(&op.to)?);
    let [held, ref row @ ..] = *op.cache.dims() else { return Err(Error::call("kv_write", "a cache without rows")) };
    let bytes = row.iter().product::<usize>() * op.cache.dtype().size();
    let word = word(&op.cache, bytes)?;
    let kernel = Kernel::new(SOURCE, format!("kv_write_copies_{word}"));
    // As `Copies` in the kernel.
    let told = params![bytes / word, held, from.elements()];
    Call::new(&cache, &kernel)?
        .changed(&cache)
        .input(&from)
        .input(&to)
        .numbers(&told)
        .run(Grid::over(bytes / word, 1))?;
    Ok(op.cache.candle()?.clone())
}

/// Bytes of the largest words that rows of `bytes` consist of, where they lie: blocks are never odd, nor are floats.
fn word(cache: &Tensor, bytes: usize) -> Result<usize> {
    let start = cache.candle()?.layout().start_offset() * cache.dtype().size();
    let word = [4, 2].into_iter().find(|word| bytes.is_multiple_of(*word) && start.is_multiple_of(*word));
    word.ok_or_else(|| Error::call("kv_write", format!("rows of {bytes} bytes from {start} on")))
}
