//! Matrix products (GEMM; GEMV for one row) with quantized weights on CUDA, and embedding lookups.
//!
//! Activations are quantized to 8 bits first, with a scale per 32, as on the CPU: then products are
//! integer dot products, four at a time, and the cost of few rows is the reading of W
//! (`mmvq.cuh`). More rows use the tensor cores' int8 products (`mmq.cuh`), for every dtype of the
//! activations, so that 8-bit weights stay exact with bf16 too. Many rows in half precision go to
//! cuBLASLt, with the blocks dequantized, except for 8-bit weights in bf16.

pub(crate) use super::grids::codes;
use super::{Quant, activation_bytes, rows_as_floats};
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::linear::cuda::{Product, multiply as multiply_floats};
use crate::{DType, Error, Result};
use std::ops::Range;

const BINARY: Binary = binary!("quant");

/// Warps of an MMVQ thread block, and columns of y per warp, for one row and for more.
const WARPS: usize = 4;
const COLUMNS_OF_ONE: usize = 4;
const COLUMNS: usize = 2;

/// Multiprocessors of a large card, and warps on each that saturate its memory bandwidth.
const MULTIPROCESSORS: usize = 132;
const BUSY_WARPS: usize = 24;

/// Whether the kernels of a format are in the translation units `quant_*_k`; those of the other
/// formats (I-quants, ternary, MXFP4) are in `quant_*_iq`.
pub(crate) fn is_legacy_or_k_quant(quant: Quant) -> bool {
    use Quant::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    matches!(quant, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2K | Q3K | Q4K | Q5K | Q6K)
}

/// The translation units of a format: MMVQ for few rows, MMQ for many.
fn binaries(quant: Quant) -> (Binary, Binary) {
    match is_legacy_or_k_quant(quant) {
        true => (binary!("quant_mmvq_k"), binary!("quant_mmq_k")),
        false => (binary!("quant_mmvq_iq"), binary!("quant_mmq_iq")),
    }
}

/// The kernels' number for the dtype of bias, residual and y.
pub(crate) fn number(dtype: DType) -> usize {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

/// Quantizes rows of x to 8 bits: see `activations_q8.cuh`. Rows must be multiples of 32 elements.
fn quantize_activations(x: &View) -> Result<DeviceBuffer> {
    let rows = x.rows()?;
    let quantized = Call::alloc(x, activation_bytes(rows.rows, rows.cols), DType::U8)?;
    Call::new(x, &Kernel::new(BINARY, format!("quant_round_{}", x.dtype())))?
        .input(x)
        .made(&quantized)
        .numbers(&params![rows.rows, rows.cols, rows.stride, x.in_fours()?])
        .run(Grid::over(rows.rows * rows.cols / 4))?;
    Ok(quantized)
}

/// Checks that a kernel can read the blocks: rows of whole blocks, aligned to 16 bytes.
fn checked(quant: Quant, blocks: &View, k: usize) -> Result<()> {
    let w = blocks.rows()?;
    if quant.bytes(k) != Some(w.cols) || !blocks.is_whole() || !blocks.start.is_multiple_of(16) {
        let what = format!("rows of {k} against {} of {} bytes in {quant}, from {}", w.rows, w.cols, blocks.start);
        return Err(Error::call("linear", what));
    }
    Ok(())
}

/// Multiplies by a part of W in blocks, `[n, bytes of a row]`. `in_8_bits` caches x as [`rounded`]
/// quantizes it, for this part and the next ones.
pub(crate) fn multiply(
    p: &Product<'_>,
    in_8_bits: &mut Option<DeviceBuffer>,
    quant: Quant,
    blocks: &View,
) -> Result<()> {
    let (x, w) = (p.x.rows()?, blocks.rows()?);
    checked(quant, blocks, x.cols)?;
    if w.rows != p.columns.len() {
        return Err(Error::call("linear", format!("{} rows of {quant} for {} columns", w.rows, p.columns.len())));
    }
    let in_8_bits = match in_8_bits.take() {
        Some(quantized) => in_8_bits.insert(quantized),
        None => in_8_bits.insert(quantize_activations(p.x)?),
    };
    let (mmvq, mmq) = binaries(quant);
    let launch = |binary: Binary, kind: &str| -> Result<Call> {
        let call = Call::new(p.x, &Kernel::new(binary, format!("quant_{kind}_{quant}")))?;
        let call = call.made(in_8_bits).input(blocks).table(codes(quant))?;
        let call = call.optional_input(p.bias).optional_input(p.residual).made(p.y);
        Ok(p.with_params(call)?.u32(w.cols).u32(number(p.x.dtype())))
    };
    let (kind, (tall, wide), threads) = match x.rows {
        0 => return Ok(()),
        1..=16 => {
            let kind = format!("mmvq{}", x.rows.next_power_of_two());
            // Number of warps that share their columns (split-K), if rows are long enough for all:
            // four if there are so few columns that the card would be idle, fewer otherwise, such
            // that no thread block runs long after the others are done.
            let (columns, warps) = match (x.rows, w.rows.div_ceil(COLUMNS_OF_ONE)) {
                (1, 0..512) => (COLUMNS_OF_ONE, 4),
                (1, 512..4096) => (COLUMNS_OF_ONE, 2),
                (1, _) => (COLUMNS_OF_ONE, 1),
                _ => (COLUMNS, if w.rows < COLUMNS * MULTIPROCESSORS * BUSY_WARPS { 4 } else { 2 }),
            };
            let split = [4, 2].into_iter().find(|split| *split <= warps && 32 * 32 * split <= x.cols).unwrap_or(1);
            let groups = w.rows.div_ceil(columns * WARPS / split);
            return launch(mmvq, &kind)?.u32(split).run(Grid::of(groups, 32 * WARPS));
        }
        17..=32 => ("mmq_32x16", (32, 16), 128),
        33..1024 if x.rows.div_ceil(64) * w.rows.div_ceil(128) < MULTIPROCESSORS => ("mmq_64x32", (64, 32), 128),
        _ => ("mmq_64x128", (64, 128), 256),
    };
    // Tiles of the same columns are adjacent: their blocks are read from memory once.
    launch(mmq, kind)?.run(Grid { blocks: [x.rows.div_ceil(tall), w.rows.div_ceil(wide), 1], threads })
}

/// Like [`multiply`] for one part or more, but dequantizes the blocks first: [`rows_as_floats`]
/// rows of W at a time, of several parts if they fit.
pub(crate) fn multiply_as_floats(p: &Product<'_>, parts: &[(Quant, View)]) -> Result<()> {
    let (k, dtype) = (p.x.rows()?.cols, p.x.dtype());
    let most = rows_as_floats(k, dtype).min(p.columns.len());
    let floats = Call::alloc(p.x, most * k, dtype)?;
    let multiply = |columns: Range<usize>| {
        let w = View::of_rows(&floats, p.x, (columns.len(), k), dtype);
        multiply_floats(&Product { columns, ..*p }, &w)
    };
    let mut columns = p.columns.start..p.columns.start; // dequantized, not yet multiplied
    for (quant, blocks) in parts {
        checked(*quant, blocks, k)?;
        let (n, (per_block, _)) = (blocks.rows()?.rows, quant.block());
        let mut first = 0;
        while first < n {
            let rows = (most - columns.len()).min(n - first);
            let (from, to) = (first * k / per_block, columns.len() * k / 32);
            dequantize_blocks((*quant, blocks), from, p.x, (&floats, to), rows * k / 32)?;
            (first, columns.end) = (first + rows, columns.end + rows);
            if columns.len() == most {
                multiply(columns.clone())?;
                columns.start = columns.end;
            }
        }
    }
    if columns.is_empty() { Ok(()) } else { multiply(columns) }
}

/// Dequantizes all parts, one below the other, to `[n, k]` in the dtype of `like`.
pub(crate) fn dequantize(parts: &[(Quant, View)], like: &View, [n, k]: [usize; 2]) -> Result<DeviceBuffer> {
    let floats = Call::alloc(like, n * k, like.dtype())?;
    let mut first = 0;
    for (quant, blocks) in parts {
        checked(*quant, blocks, k)?;
        let runs = blocks.rows()?.rows * k / 32;
        dequantize_blocks((*quant, blocks), 0, like, (&floats, first), runs)?;
        first += runs;
    }
    Ok(floats)
}

/// Dequantizes `runs` runs of 32 elements, from block `from` on, to the dtype of `like`: to
/// `floats` from its run `to` on.
fn dequantize_blocks(
    (quant, blocks): (Quant, &View),
    from: usize,
    like: &View,
    (floats, to): (&DeviceBuffer, usize),
    runs: usize,
) -> Result<()> {
    Call::new(like, &Kernel::new(BINARY, format!("quant_floats_{quant}_{}", like.dtype())))?
        .input(blocks)
        .table(codes(quant))?
        .made(floats)
        .numbers(&params![runs, from, to])
        .run(Grid::over(runs))
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
    checked(quant, blocks, k)?;
    let (w, table) = (blocks.rows()?, also.map(|(table, _)| table.rows()).transpose()?);
    let y = Call::alloc(like, ids.elements() * k, like.dtype())?;
    Call::new(blocks, &Kernel::new(BINARY, format!("quant_rows_{quant}")))?
        .input(blocks)
        .table(codes(quant))?
        .input(ids)
        .optional_input(also.map(|(table, _)| table))
        .optional_input(also.map(|(_, places)| places))
        .made(&y)
        .numbers(&params![ids.elements(), k, w.rows, w.cols])
        .numbers(&params![table.map_or(0, |t| t.rows), table.map_or(0, |t| t.stride)])
        .numbers(&params![number(like.dtype()), scale])
        .run(Grid::over(ids.elements() * k / 32))?;
    Ok(y)
}
