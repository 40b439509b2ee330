//! Launches `kernel.metal`: into the cache's own memory.

use super::copy::CopyOp;
use super::{CacheFormat, StoreOp, Turn, Vectors};
use crate::launch::metal::buffers::Made;
use crate::launch::metal::{Call, Grid, Kernel, Lines, Told, View, kernels};
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Heads {
    queries: u32,
    heads: u32,
    size: u32,
    /// Of queries, keys and values: from one token to the next, and from one head to the next.
    apart: [[u32; 2]; 3],
    held: u32,
    pairs: u32,
    positions: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Heads {}

pub(super) fn run(op: &StoreOp) -> Result<()> {
    launch(op, None)
}

/// The queries of `turn`, turned; and its keys, turned, and values in the cache.
pub(crate) fn turned(op: &StoreOp, turn: &Turn<'_>) -> Result<candle_core::Tensor> {
    let q = View::of(turn.q)?;
    let y = Call::room(&q, q.elements(), turn.q.dtype())?;
    launch(op, Some((turn, &y)))?;
    y.tensor(turn.q.dims())
}

/// A thread for four neighbours of a head.
fn launch(op: &StoreOp, turn: Option<(&Turn<'_>, &Made)>) -> Result<()> {
    let ([k, v], rows) = (&op.x, View::whole(&op.rows)?);
    let (k, v) = (View::of(k)?, View::of(v)?);
    let (of_k, of_v) = (k.lines()?, v.lines()?);
    let apart = |lines: Lines| [lines.token as u32, lines.head as u32];
    let mut told = Heads {
        queries: 0,
        heads: of_k.heads as u32,
        size: of_k.size as u32,
        apart: [[0; 2], apart(of_k), apart(of_v)],
        held: op.cache[0].dims()[0] as u32,
        pairs: 0,
        positions: 0,
    };
    let kernel = match op.cache[0].format() {
        CacheFormat::Float(kept) => format!("store_{}_in_{kept}", k.dtype()),
        CacheFormat::Q8 => format!("store_blocks_{}", k.dtype()),
    };
    let kernel = Kernel::new(SOURCE, kernel).flag(turn.is_some());
    let [keys, values] = &op.cache;
    let (keys, values) = (Written::of(keys)?, Written::of(values)?);
    let call = Call::new(&k, &kernel)?;
    let call = if let Some((turn, y)) = turn {
        let (q, positions) = (View::of(turn.q)?, View::whole(turn.positions)?);
        let (cosines, sines) = (View::whole(turn.cosines)?, View::whole(turn.sines)?);
        let (of_q, table) = (q.lines()?, cosines.rows()?);
        told.queries = of_q.heads as u32;
        told.apart[0] = apart(of_q);
        (told.pairs, told.positions) = (table.cols as u32, table.rows as u32);
        call.input(&q).input(&k).input(&v).input(&positions).input(&cosines).input(&sines).input(&rows).result(y)
    } else {
        // Heads next to each other are one long head, whose fours are cut short only once.
        if [of_k, of_v].iter().all(|lines| lines.head == lines.size) {
            (told.heads, told.size) = (1, told.heads * told.size);
        }
        // Something must stand for what the kernel does not look at.
        call.input(&k).input(&k).input(&v).input(&rows).input(&k).input(&k).input(&rows).changed(&keys.elements)
    };
    let call = call.changed(&keys.elements).changed(&values.elements);
    let call = match (&keys.scales, &values.scales) {
        (Some(of_keys), Some(of_values)) => call.changed(of_keys).changed(of_values),
        _ => call,
    };
    let fours = (told.queries + 2 * told.heads) as usize * (told.size as usize).div_ceil(4);
    call.told(&told).run(Grid::over(fours, of_k.tokens))
}

/// The tensors of a cache's keys or values.
struct Written {
    elements: View,
    scales: Option<View>,
}

impl Written {
    fn of(cache: &Vectors) -> Result<Written> {
        let scales = match cache {
            Vectors::Float(_) => None,
            Vectors::Q8 { scales, .. } => Some(View::whole(scales)?),
        };
        Ok(Written { elements: View::whole(cache.elements())?, scales })
    }
}

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Copies {
    words: u32,
    held: u32,
    copies: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Copies {}

/// A thread for each word of a row.
pub(super) fn copy(op: &CopyOp) -> Result<candle_core::Tensor> {
    let (cache, from, to) = (View::whole(&op.cache)?, View::whole(&op.from)?, View::whole(&op.to)?);
    let [held, ref row @ ..] = *op.cache.dims() else { return Err(Error::call("store", "a cache without rows")) };
    let bytes = row.iter().product::<usize>() * op.cache.dtype().size();
    let word = word(&op.cache, bytes)?;
    let kernel = Kernel::new(SOURCE, format!("store_copies_{word}"));
    let told = Copies { words: (bytes / word) as u32, held: held as u32, copies: from.elements() as u32 };
    Call::new(&cache, &kernel)?.changed(&cache).input(&from).input(&to).told(&told).run(Grid::over(bytes / word, 1))?;
    Ok(op.cache.candle()?.clone())
}

/// Bytes of the largest words that rows of `bytes` consist of, where they lie: blocks are never odd, nor are floats.
fn word(cache: &Tensor, bytes: usize) -> Result<usize> {
    let start = cache.candle()?.layout().start_offset() * cache.dtype().size();
    let word = [4, 2].into_iter().find(|word| bytes.is_multiple_of(*word) && start.is_multiple_of(*word));
    word.ok_or_else(|| Error::call("store", format!("rows of {bytes} bytes from {start} on")))
}
