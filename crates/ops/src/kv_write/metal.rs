//! Launches `kernel.metal`, which writes directly into the cache's memory.

use super::copy::CopyOp;
use super::{KvCacheFormat, KvWriteOp, RotaryQueries};
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, Lines, View, kernels};
use crate::launch::params;
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

pub(super) fn run(op: &KvWriteOp) -> Result<candle_core::Tensor> {
    launch(op, None)?;
    op.written_keys()
}

/// Rotates the queries, which it returns, and the keys; writes keys and values to the cache.
pub(crate) fn rotary_kv_write(op: &KvWriteOp, rotary: &RotaryQueries<'_>) -> Result<candle_core::Tensor> {
    let q = View::of(rotary.q)?;
    let y = Call::alloc(&q, q.elements(), rotary.q.dtype())?;
    launch(op, Some((rotary, &y)))?;
    y.tensor(rotary.q.dims())
}

/// One thread per four neighbouring elements of a head.
fn launch(op: &KvWriteOp, rotary: Option<(&RotaryQueries<'_>, &DeviceBuffer)>) -> Result<()> {
    let ([k, v], rows) = (&op.x, View::whole(&op.rows)?);
    let (k, v) = (View::of(k)?, View::of(v)?);
    let (of_k, of_v) = (k.lines()?, v.lines()?);
    let strides = |lines: Lines| params![lines.token, lines.head];
    let (mut queries, mut of_q, mut table) = (0, [0; 2], [0; 2]);
    let (mut heads, mut size) = (of_k.heads, of_k.size);
    let kernel = match op.cache[0].format() {
        KvCacheFormat::Float(dtype) => format!("kv_write_{}_in_{dtype}", k.dtype()),
        KvCacheFormat::Q8 => format!("kv_write_blocks_{}", k.dtype()),
    };
    let kernel = Kernel::new(SOURCE, kernel).flag(rotary.is_some());
    let [keys, values] = op.cache_views(View::whole)?;
    let call = Call::new(&k, &kernel)?;
    let call = if let Some((rotary, y)) = rotary {
        let (q, positions) = (View::of(rotary.q)?, View::whole(rotary.positions)?);
        let (cosines, sines) = (View::whole(rotary.cosines)?, View::whole(rotary.sines)?);
        let (lines, angles) = (q.lines()?, cosines.rows()?);
        (queries, of_q, table) = (lines.heads, strides(lines), params![angles.cols, angles.rows]);
        call.input(&q).input(&k).input(&v).input(&positions).input(&cosines).input(&sines).input(&rows).result(y)
    } else {
        // Contiguous heads are treated as one long head, with only one remainder of fewer than
        // four.
        if [of_k, of_v].iter().all(|lines| lines.head == lines.size) {
            (heads, size) = (1, heads * size);
        }
        // Placeholders for arguments that the kernel does not read.
        call.input(&k).input(&k).input(&v).input(&rows).input(&k).input(&k).input(&rows).changed(&keys[0])
    };
    let call = keys.iter().zip(&values).fold(call, |call, (keys, values)| call.changed(keys).changed(values));
    // As `Heads` in the kernel.
    let steps = [of_q, strides(of_k), strides(of_v)];
    let shape =
        [&params![queries, heads, size][..], steps.as_flattened(), &params![op.cache[0].dims()[0]], &table].concat();
    call.numbers(&shape).run(Grid::over((queries + 2 * heads) * size.div_ceil(4), of_k.tokens))
}

/// One thread per word of a row.
pub(super) fn copy(op: &CopyOp) -> Result<candle_core::Tensor> {
    let (cache, from, to) = (View::whole(&op.cache)?, View::whole(&op.from)?, View::whole(&op.to)?);
    let [row_count, ref row @ ..] = *op.cache.dims() else {
        return Err(Error::call("kv_write", "the KV cache has no rows"));
    };
    let bytes = row.iter().product::<usize>() * op.cache.dtype().size();
    let word = word(&op.cache, bytes)?;
    let kernel = Kernel::new(SOURCE, format!("kv_write_copies_{word}"));
    // As `Copies` in the kernel.
    let shape = params![bytes / word, row_count, from.elements()];
    Call::new(&cache, &kernel)?
        .changed(&cache)
        .input(&from)
        .input(&to)
        .numbers(&shape)
        .run(Grid::over(bytes / word, 1))?;
    Ok(op.cache.candle()?.clone())
}

/// Bytes of the largest words that fit the rows' size and alignment; rows of floats and Q8 blocks
/// are never odd.
fn word(cache: &Tensor, bytes: usize) -> Result<usize> {
    let start = cache.candle()?.layout().start_offset() * cache.dtype().size();
    let word = [4, 2].into_iter().find(|word| bytes.is_multiple_of(*word) && start.is_multiple_of(*word));
    word.ok_or_else(|| {
        Error::call("kv_write", format!("rows of {bytes} bytes, from byte {start} on, are not aligned to 2 bytes"))
    })
}
