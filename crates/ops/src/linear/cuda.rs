//! Matrix products (GEMM) on CUDA, part by part: one row (GEMV) by `kernel.cu`; more rows by
//! cuBLASLt or, on Hopper, by `hopper_90a.cu` and `wide_90a.cu`; parts in block formats by the
//! kernels of `quant`. A product followed by a layer norm is `normed_90a.cu`.

use super::weight::{Data, Part};
use super::{LinearOp, Weight, product};
use crate::ladder::Op;
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary, blas};
use crate::launch::params;
use crate::{Activation, DType, Error, LayerNorm, Quant, Result, Tensor, quant};

const BINARY: Binary = binary!("linear");
const HOPPER: Binary = binary!("linear_hopper_90a");
const WIDE: Binary = binary!("linear_wide_90a");
const NORMED: Binary = binary!("linear_normed_90a");

/// Warps of a block.
const WARPS: usize = 4;

/// Rows and columns of a tile on Hopper, threads and shared memory of a thread block, as in
/// `hopper_90a.cu`.
const HOPPER_TILE: usize = 128;
const HOPPER_THREADS: usize = 384;
const HOPPER_SHARED: usize = 4 * (2 * HOPPER_TILE * 64 * 2) + 8 * (16 * 136 * 4) + (2 * 4 + 2) * 8;

/// Columns of a wide tile, and the rows of x and of W per TMA copy, as in `wide.cuh`.
const TILE_COLUMNS: usize = 192;
const COPY_ROWS: [u32; 2] = [64, 96];

/// Configuration of `wide_90a.cu`: how a tile gets its part of W.
struct WideConfig {
    name: &'static str,
    /// Rows of a tile.
    rows: usize,
    /// Thread blocks of a cluster, which compute tiles one below the other.
    cluster: usize,
    threads: usize,
    /// Shared memory of a thread block, in bytes: resident W, the ring of stages, staging of
    /// results, biases, barriers.
    shared: usize,
}

/// A thread block keeps all of its columns of W in shared memory.
const RESIDENT_W: WideConfig = WideConfig {
    name: "resident",
    rows: 64,
    cluster: 1,
    threads: 512,
    shared: 6 * W_STAGE + 6 * X_STAGE + 12 * STAGING + 3 * BIASES + (2 * 6 + 3 + 6) * 8,
};
const RESIDENT_STEPS: usize = 6;

/// Two thread blocks of a cluster fetch half of W's part each, and share it.
const MULTICAST_W: WideConfig = WideConfig {
    name: "multicast",
    rows: 128,
    cluster: 2,
    threads: 384,
    shared: 5 * (2 * X_STAGE + W_STAGE) + 8 * STAGING + 2 * BIASES + (2 * 5 + 2) * 8,
};

/// Row widths with a fused norm, rows and columns of a tile, thread blocks of a cluster, threads
/// and shared memory, as in `normed_90a.cu`.
const NORMED_WIDTHS: [usize; 2] = [384, 768];
const NORMED_TILE: [usize; 2] = [128, 2 * TILE_COLUMNS];
const NORMED_CLUSTER: usize = 2;
const NORMED_THREADS: usize = 384;
const NORMED_SHARED: usize =
    3 * (2 * X_STAGE + 2 * W_STAGE) + 8 * STAGING + 3 * NORMED_TILE[1] * 4 + 2 * NORMED_TILE[0] * 8 + (2 * 3 + 8) * 8;

const X_STAGE: usize = 64 * 64 * 2;
const W_STAGE: usize = TILE_COLUMNS * 64 * 2;
const STAGING: usize = 2 * 16 * 32 * 2;
const BIASES: usize = 2 * TILE_COLUMNS * 4;

/// [`product::Product`] with CUDA's tensors.
pub(crate) type Product<'a> = product::Product<'a, View, DeviceBuffer>;

impl Product<'_> {
    /// Adds the parameters that every product kernel ends with.
    pub(crate) fn with_params(&self, call: Call) -> Result<Call> {
        self.with_params_and_stride(call, self.x.rows()?.stride)
    }

    /// The same for a kernel that reads something other than x, with this row stride.
    fn with_params_and_stride(&self, call: Call, step: usize) -> Result<Call> {
        let x = self.x.rows()?;
        let residual = self.residual.map_or(Ok(0), |r| r.rows().map(|r| r.stride))?;
        let (n, first) = (self.columns.len(), self.columns.start);
        let call = call.numbers(&params![x.rows, n, x.cols, step]);
        Ok(call.numbers(&params![residual, self.width, first, self.activation as usize]))
    }
}

pub(super) fn run(op: &LinearOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let bias = op.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let (rows, width) = (x.rows()?.rows, op.weight.n);
    let y = Call::alloc(&x, rows * width, op.x.dtype())?;
    let (bias, residual) = (bias.as_ref(), residual.as_ref());
    let p = Product { x: &x, bias, activation: op.activation, residual, y: &y, width, columns: 0..width };
    if let Some(floats) = op.weight.floats(rows) {
        multiply(&p, &View::whole(floats)?)?;
        return y.tensor(&op.out().0);
    }
    let (mut first, mut in_8_bits) = (0, None);
    for parts in op.weight.groups(rows).filter(|_| rows > 0) {
        let columns = first..first + parts.iter().map(|part| part.n).sum::<usize>();
        first = columns.end;
        let p = Product { columns, ..p };
        match &parts[0].data {
            Data::Rows(w) if w.dtype() == op.x.dtype() => multiply(&p, &View::whole(w)?)?,
            Data::Raw(..) if op.weight.becomes_floats(&parts[0], rows) => {
                quant::cuda::multiply_as_floats(&p, &blocks(parts)?)?
            }
            Data::Raw(quant, blocks) => quant::cuda::multiply(&p, &mut in_8_bits, *quant, &View::whole(blocks)?)?,
            other => return Err(Error::call("linear", format!("no kernel for a weight in {other:?} on CUDA"))),
        }
    }
    y.tensor(&op.out().0)
}

/// Formats and blocks of parts in blocks.
fn blocks(parts: &[Part]) -> Result<Vec<(Quant, View)>> {
    parts.iter().filter_map(Part::blocks).map(|(quant, t)| Ok((quant, View::whole(t)?))).collect()
}

/// A weight in blocks, dequantized to the dtype of the activations, `[n, k]`.
pub(super) fn dequantized(weight: &Weight) -> Result<candle_core::Tensor> {
    let floats = quant::cuda::dequantize(&blocks(&weight.parts)?, &View::whole(&weight.like)?, [weight.n, weight.k])?;
    floats.tensor_outside_pool(&[weight.n, weight.k])
}

/// A product with residual and layer norm, for `normed_90a.cu`.
pub(super) struct Normed {
    x: View,
    w: View,
    residual: View,
    /// Row tiles of clusters, and the number of clusters that fit on the card at once.
    tiles: usize,
    clusters: usize,
}

impl Normed {
    /// `Some` if this card has the kernel and few of its multiprocessors would be idle.
    pub(super) fn of(op: &LinearOp, residual: &Tensor) -> Result<Option<Normed>> {
        let (n, k, dtype) = (op.weight.n, op.weight.k, op.x.dtype());
        let is_for_it = NORMED_WIDTHS.contains(&n) && k > 64 && op.activation == Activation::None && dtype.size() == 2;
        let Some(w) = op.weight.only_rows().filter(|w| is_for_it && w.dtype() == dtype) else { return Ok(None) };
        let (x, w, residual) = (View::of(&op.x)?, View::whole(w)?, View::of(residual)?);
        let is_aligned = x.is_16_byte_aligned()? && w.is_16_byte_aligned()? && residual.is_16_byte_aligned()?;
        // A row that is wider than a tile takes two tiles, side by side.
        let down = NORMED_TILE[0] * NORMED_CLUSTER * NORMED_TILE[1] / n;
        let (tiles, clusters) = (x.rows()?.rows.div_ceil(down), x.processors() / NORMED_CLUSTER);
        let is_busy = clusters > 0 && 4 * tiles >= 3 * tiles.div_ceil(clusters) * clusters && tiles > 0;
        let is_taken = !NORMED.is_empty() && x.is_hopper() && is_aligned && is_busy;
        Ok(is_taken.then_some(Normed { x, w, residual, tiles, clusters }))
    }

    pub(super) fn run(&self, op: &LinearOp, norm: &LayerNorm) -> Result<candle_core::Tensor> {
        let (norm_weight, norm_bias, eps) = norm.parts();
        let [bias, norm_bias] = [op.bias.as_ref(), norm_bias].map(|t| t.map(View::whole).transpose());
        let (rows, n, dtype) = (self.x.rows()?.rows, op.weight.n, op.x.dtype());
        let y = Call::alloc(&self.x, rows * n, dtype)?;
        let kernel = Kernel::new(NORMED, format!("linear_normed_{n}_{dtype}")).shared(NORMED_SHARED);
        Call::new(&self.x, &kernel)?
            .map(self.x.map(COPY_ROWS[0])?)
            .map(self.w.map(COPY_ROWS[1])?)
            .map(self.residual.map(COPY_ROWS[0])?)
            .optional_input(bias?.as_ref())
            .input(&View::whole(norm_weight)?)
            .optional_input(norm_bias?.as_ref())
            .made(&y)
            .numbers(&params![rows, op.weight.k, eps])
            .alternate_row_order()
            .run(Grid::of(NORMED_CLUSTER * self.tiles.min(self.clusters), NORMED_THREADS))?;
        y.tensor(&op.out().0)
    }
}

/// Multiplies by a part in floats, `[n, k]`, in the dtype of the activations.
pub(crate) fn multiply(p: &Product<'_>, w: &View) -> Result<()> {
    let (x, n, dtype) = (p.x.rows()?, p.columns.len(), p.x.dtype());
    if x.rows == 1 {
        let kind = if p.x.is_16_byte_aligned()? && w.is_16_byte_aligned()? { "gemv" } else { "gemv_unaligned" };
        let call = Call::new(p.x, &Kernel::new(BINARY, format!("linear_{kind}_{dtype}")))?;
        let call = call.input(p.x).input(w).optional_input(p.bias).optional_input(p.residual).made(p.y);
        return p.with_params(call)?.run(Grid::of(n.div_ceil(WARPS), 32 * WARPS));
    }
    let is_for_hopper = is_for_hopper(p, w)?;
    if let Some((config, blocks)) = wide(p)?.filter(|_| is_for_hopper) {
        let kind = if p.activation == Activation::Gelu { "gelu" } else { "plain" };
        let kernel = Kernel::new(WIDE, format!("linear_{}_{kind}_{dtype}", config.name)).shared(config.shared);
        let call = Call::new(p.x, &kernel)?.map(p.x.map(COPY_ROWS[0])?).map(w.map(COPY_ROWS[1])?);
        return p
            .with_params(call.optional_input(p.bias).optional_input(None).made(p.y))?
            .alternate_row_order()
            .run(Grid::of(blocks, config.threads));
    }
    // cuBLASLt rounds its sums to the dtype of y before anything but a bias, and its GELU is the
    // tanh approximation. So a product with more than a bias runs in our kernels on Hopper;
    // elsewhere our second pass finishes cuBLASLt's sums in f32.
    if p.activation == Activation::None && p.residual.is_none() {
        return blas::multiply(&blas::Product {
            x: p.x,
            w,
            bias: p.bias,
            y: (p.y, dtype),
            width: p.width,
            first: p.columns.start,
        });
    }
    let tiles = x.rows.div_ceil(HOPPER_TILE) * n.div_ceil(HOPPER_TILE);
    // Fewer tiles would leave multiprocessors idle; cuBLASLt splits the depth among them.
    if is_for_hopper && 2 * tiles >= p.x.processors() {
        let kind = match p.activation {
            Activation::None => "plain",
            Activation::Gelu => "gelu",
            _ => "any",
        };
        let kernel = Kernel::new(HOPPER, format!("linear_hopper_{kind}_{dtype}")).shared(HOPPER_SHARED);
        let call = Call::new(p.x, &kernel)?.map(p.x.map(HOPPER_TILE as u32)?).map(w.map(HOPPER_TILE as u32)?);
        let call = call.optional_input(p.bias).optional_input(p.residual).made(p.y);
        return p.with_params(call)?.run(Grid::of(tiles.min(p.x.processors()), HOPPER_THREADS));
    }
    let sums = Call::alloc(p.x, x.rows * n, DType::F32)?;
    blas::multiply(&blas::Product { x: p.x, w, bias: None, y: (&sums, DType::F32), width: n, first: 0 })?;
    let run = 16 / dtype.size();
    let steps = [n, p.width, p.columns.start, p.residual.map_or(Ok(0), |r| r.rows().map(|r| r.stride))?];
    let starts = [p.residual, p.bias].map(|t| t.map_or(0, |t| t.start));
    let (kind, run) = match steps.iter().chain(&starts).all(|i| i.is_multiple_of(run)) {
        true => ("epilogue", run),
        false => ("epilogue_unaligned", 1),
    };
    let call = Call::new(p.x, &Kernel::new(BINARY, format!("linear_{kind}_{dtype}")))?;
    p.with_params_and_stride(call.made(&sums).optional_input(p.bias).optional_input(p.residual).made(p.y), n)?
        .run(Grid::over((x.rows * n).div_ceil(run)))
}

/// The configuration and the number of thread blocks for `wide_90a.cu`, if it was measured to be
/// faster than the other kernels.
fn wide(p: &Product<'_>) -> Result<Option<(WideConfig, usize)>> {
    let (x, n, processors) = (p.x.rows()?, p.columns.len(), p.x.processors());
    if p.residual.is_some()
        || !matches!(p.activation, Activation::None | Activation::Gelu)
        || !n.is_multiple_of(TILE_COLUMNS)
        || processors < MULTICAST_W.cluster
    {
        return Ok(None);
    }
    let columns = n / TILE_COLUMNS;
    // The same number of thread blocks for each column of tiles; few multiprocessors should be
    // idle.
    let (per_column, down) = (processors / columns, x.rows.div_ceil(RESIDENT_W.rows));
    if x.cols.div_ceil(64) == RESIDENT_STEPS
        && 8 * per_column * columns >= 7 * processors
        && down * columns >= processors
    {
        return Ok(Some((RESIDENT_W, per_column.min(down) * columns)));
    }
    // cuBLASLt is as fast on deep products, and faster on few tiles.
    let pairs = x.rows.div_ceil(MULTICAST_W.rows * MULTICAST_W.cluster) * columns;
    let is_shared = x.cols <= 1536 && MULTICAST_W.cluster * pairs >= 3 * processors;
    Ok(is_shared.then(|| (MULTICAST_W, MULTICAST_W.cluster * pairs.min(processors / MULTICAST_W.cluster))))
}

/// Whether the Hopper kernels can take the product: they are available, and all rows are aligned to
/// 16 bytes.
fn is_for_hopper(p: &Product<'_>, w: &View) -> Result<bool> {
    let is_half = p.x.dtype().size() == 2;
    let aligned = |view: Option<&View>| view.map_or(Ok(true), |view| view.is_16_byte_aligned());
    let whole = p.width.is_multiple_of(8) && p.columns.start.is_multiple_of(8) && p.columns.len().is_multiple_of(8);
    Ok(is_half
        && !HOPPER.is_empty()
        && p.x.is_hopper()
        && whole
        && p.x.is_16_byte_aligned()?
        && w.is_16_byte_aligned()?
        && aligned(p.residual)?
        && p.bias.is_none_or(|bias| bias.start.is_multiple_of(8)))
}
