//! Launches `kernel.metal`: few rows by SIMD-groups that read the blocks once, more rows in tiles,
//! and embedding lookups.

use super::Quant;
pub(crate) use super::grids::words;
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::linear::metal::Product;
use crate::{Error, Result};

const SOURCE: &str = kernels!("../linear/product.metal", "formats.metal", "products.metal");

/// Most rows of x per SIMD-group, outputs per SIMD-group, and SIMD-groups of a threadgroup: two, so
/// that the outputs of small matrices are spread over many cores.
const MAX_GEMV_ROWS: usize = 8;
pub(crate) const OUTPUTS: usize = 2;
pub(crate) const SIMDS: usize = 2;

/// Rows and outputs of a tile.
pub(crate) const TALL: usize = 32;
pub(crate) const WIDE: usize = 64;

/// Multiplies by a part of W in blocks, `[n, bytes of a row]`.
pub(crate) fn multiply(p: &Product<'_>, quant: Quant, blocks: &View) -> Result<()> {
    let (x, w) = (p.x.rows()?, blocks.rows()?);
    if quant.bytes(x.cols) != Some(w.cols) || w.rows != p.columns.len() {
        let what = format!("rows of {} against {} of {} bytes in {quant}", x.cols, w.rows, w.cols);
        return Err(Error::call("linear", what));
    }
    let (name, grid) = match x.rows {
        0 => return Ok(()),
        1..=MAX_GEMV_ROWS => {
            let groups = [w.rows.div_ceil(OUTPUTS * SIMDS), 1, 1];
            (if x.rows == 1 { "gemv1" } else { "gemv8" }, Grid { groups, threads: 32 * SIMDS })
        }
        // Tiles of the same outputs are adjacent: their blocks are read from memory once.
        _ => ("gemm", Grid { groups: [x.rows.div_ceil(TALL), w.rows.div_ceil(WIDE), 1], threads: 128 }),
    };
    let kernel = p.kernel(SOURCE, format!("quant_{name}_{quant}_{}", p.x.dtype()), p.x.in_fours()?);
    let params = p.sizes(w.cols)?;
    let grid_of = words(quant);
    Call::new(p.x, &kernel)?
        .input(p.x)
        .input(blocks)
        .array(&grid_of)?
        .input_or(p.bias, p.x)
        .input_or(p.residual, p.x)
        .result(p.y)
        .numbers(&params)
        .run(grid)
}

/// Embedding lookup: y[t] = scale · W[ids[t]] + table[ids'[t]] for W in blocks `[n, bytes of a
/// row]`; y `[tokens, k]` is in the dtype of `like`.
pub(crate) fn look_up(
    (quant, blocks): (Quant, &View),
    ids: &View,
    scale: f32,
    also: Option<(&View, &View)>,
    (like, k): (&View, usize),
) -> Result<DeviceBuffer> {
    let (w, table) = (blocks.rows()?, also.map(|(table, _)| table.rows()).transpose()?);
    if quant.bytes(k) != Some(w.cols) {
        return Err(Error::call("embed", format!("rows of {k} elements do not fit {} bytes of {quant}", w.cols)));
    }
    let y = Call::alloc(like, ids.elements() * k, like.dtype())?;
    let parts = ids.elements() * k / 16;
    // The fields of `Lookup` in the kernel.
    let params =
        params![parts, k / 16, w.cols, table.map_or(0, |t| t.stride), w.rows, table.map_or(0, |t| t.rows), scale];
    let kernel =
        Kernel::new(SOURCE, format!("quant_rows_{quant}_{}", like.dtype())).flag(false).flag(also.is_some()).number(0);
    let (call, grid_of) = (Call::new(blocks, &kernel)?, words(quant));
    let threads = call.most_threads().min(128);
    call.input(blocks)
        .array(&grid_of)?
        .input(ids)
        .input_or(also.map(|(table, _)| table), like)
        .input_or(also.map(|(_, places)| places), ids)
        .result(&y)
        .numbers(&params)
        .run(Grid { groups: [parts.div_ceil(threads), 1, 1], threads })?;
    Ok(y)
}
