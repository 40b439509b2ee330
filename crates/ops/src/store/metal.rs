//! Launches `kernel.metal`: into the cache's own memory.

use super::copy::CopyOp;
use super::{StoreOp, Vectors};
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Heads {
    heads: u32,
    size: u32,
    token: u32,
    head: u32,
    held: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Heads {}

/// A thread for four neighbours of a head.
pub(super) fn run(op: &StoreOp) -> Result<candle_core::Tensor> {
    let (x, rows, elements) = (View::of(&op.x)?, View::whole(&op.rows)?, View::whole(op.cache.elements())?);
    let lines = x.lines()?;
    // Heads next to each other are one long head, whose fours are cut short only once.
    let (heads, size) =
        if lines.head == lines.size { (1, lines.heads * lines.size) } else { (lines.heads, lines.size) };
    let told = Heads {
        heads: heads as u32,
        size: size as u32,
        token: lines.token as u32,
        head: lines.head as u32,
        held: op.cache.dims()[0] as u32,
    };
    let grid = Grid::over(heads * size.div_ceil(4), lines.tokens);
    let from = op.x.dtype();
    match &op.cache {
        Vectors::Float(cache) => {
            let kernel = Kernel::new(SOURCE, format!("store_{from}_in_{}", cache.dtype()));
            Call::new(&x, &kernel)?.input(&x).input(&rows).changed(&elements).told(&told).run(grid)?;
        }
        Vectors::Q8 { scales, .. } => {
            let scales = View::whole(scales)?;
            let kernel = Kernel::new(SOURCE, format!("store_blocks_{from}"));
            let call = Call::new(&x, &kernel)?.input(&x).input(&rows);
            call.changed(&elements).changed(&scales).told(&told).run(grid)?;
        }
    }
    Ok(op.cache.elements().candle()?.clone())
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
