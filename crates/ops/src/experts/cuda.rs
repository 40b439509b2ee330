//! Launches `kernel.cu` and the products: first the router's logits. With few pairs of token and
//! expert, the two launches of `gemv.cu` select the experts, multiply and add up. Many pairs take
//! five launches (grouped GEMM): they are selected, sorted by expert, multiplied in tiles twice
//! (`tile.cu`, in f32 `simt.cu`) and added up.
//! Nothing is read back, so grids have the size of the worst case, and blocks without work return
//! at once.
//!
//! Matrices in GGUF block formats have kernels of their own for the same launches (`blocks/`),
//! chosen separately for each of the two products. They have no tiles in f32, which is for checks:
//! there every pair is computed on its own, however many there are.

use super::{ExpertsOp, MAX_EXPERTS, uniform_tensors};
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::launch::strided::Rows;
use crate::linear::Weight;
use crate::quant::cuda::{codes, is_legacy_or_k_quant, number};
use crate::{Activation, DType, Error, Quant, Result};

const ROUTING: Binary = binary!("experts");
const GEMV: Binary = binary!("experts_gemv");
const TILE: Binary = binary!("experts_tile");
const SIMT: Binary = binary!("experts_simt");

/// Up to this many tokens, each warp that computes logits reads the router itself.
const MAX_TOKENS_BY_WARPS: usize = 256;

/// Rows and columns of a tile in f32, and columns of one in 16-bit floats.
const SIDE: usize = 64;
const WIDE: usize = 128;

/// Rows of a tile with quantized weights, which has as many columns as one in 16-bit floats.
const TALL_IN_BLOCKS: usize = 64;

/// Columns per block of `down` in `gemv.cu`, and matrix rows per warp of `up`.
const ROWS: usize = 4;

pub(super) fn run(op: &ExpertsOp) -> Result<candle_core::Tensor> {
    let (e, x) = (&op.experts, View::of(&op.x)?);
    let rows = x.rows()?;
    let (n, inner) = (e.up[0].k(), e.down[0].k());
    let y = Call::alloc(&x, rows.rows * n, op.x.dtype())?;
    let bias = e.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let layer =
        Layer { op, rows, pairs: rows.rows * e.top, n, inner, run: 16 / op.x.dtype().size(), x, bias, residual };
    let logits = layer.logits()?;
    let has_blocks = [&e.up, &e.down].into_iter().any(|weights| weights[0].only_raw().is_some());
    // With hardly more than one pair per expert, a tile would be empty but for its first row.
    if layer.pairs <= e.up.len().max(8) || (has_blocks && layer.dtype() == DType::F32) {
        layer.run_gemv(&logits, &y)?;
    } else {
        layer.run_grouped_gemm(&logits, &y)?;
    }
    y.tensor(op.x.dims())
}

struct Layer<'a> {
    op: &'a ExpertsOp,
    x: View,
    rows: Rows,
    /// Pairs of token and expert.
    pairs: usize,
    n: usize,
    inner: usize,
    /// Elements in 16 bytes.
    run: usize,
    bias: Option<View>,
    residual: Option<View>,
}

/// The experts' matrices of one product.
struct Matrices {
    addresses: Vec<u64>,
    /// Their quantization, if any.
    quant: Option<Quant>,
    /// Dtype of the activations.
    dtype: DType,
    /// Bytes of a row.
    row: usize,
    /// Whether rows are whole, aligned runs of 16 bytes; for quantized weights, whether the first
    /// row is aligned.
    in_runs: bool,
}

impl Matrices {
    fn of(weights: &[Weight]) -> Result<Matrices> {
        let Some((quant, tensors)) = uniform_tensors(weights) else {
            return Err(Error::call(
                "experts",
                "an expert's weights are split into parts, or the experts' formats differ",
            ));
        };
        let addresses = tensors.into_iter().map(View::place).collect::<Result<Vec<_>>>()?;
        let (k, dtype) = (weights[0].k(), weights[0].dtype());
        let starts = addresses.iter().all(|address| address.is_multiple_of(16));
        let Some(quant) = quant else {
            let row = k * dtype.size();
            return Ok(Matrices { addresses, quant, dtype, row, in_runs: starts && row.is_multiple_of(16) });
        };
        match quant.bytes(k) {
            Some(row) if starts => Ok(Matrices { addresses, quant: Some(quant), dtype, row, in_runs: true }),
            _ => Err(Error::call(
                "experts",
                format!("rows of {k} in {quant} are not whole blocks, or not aligned to 16 bytes"),
            )),
        }
    }

    /// The kernel of this kind for their block format, or the given one for floats.
    fn kernel(&self, kind: &str, (binary, floats): (Binary, String)) -> Kernel {
        let Some(quant) = self.quant else { return Kernel::new(binary, floats) };
        match (kind, is_legacy_or_k_quant(quant)) {
            ("tile", true) => {
                Kernel::new(binary!("experts_blocks_tile_k"), format!("experts_tile_{quant}_{}", self.dtype))
            }
            ("tile", false) => {
                Kernel::new(binary!("experts_blocks_tile_iq"), format!("experts_tile_{quant}_{}", self.dtype))
            }
            (_, true) => Kernel::new(binary!("experts_blocks_gemv_k"), format!("experts_{kind}_{quant}")),
            (_, false) => Kernel::new(binary!("experts_blocks_gemv_iq"), format!("experts_{kind}_{quant}")),
        }
    }

    /// Adds a kernel's last parameters: the addresses of the matrices, up to `capacity` of them for
    /// floats, and before them what block formats need.
    fn add_weights(&self, call: Call, in_runs: bool, capacity: usize) -> Result<Call> {
        let Some(quant) = self.quant else { return Ok(call.addresses(&self.addresses, capacity)) };
        let call = call.table(codes(quant))?.numbers(&params![self.row, number(self.dtype), in_runs]);
        Ok(call.addresses(&self.addresses, MAX_EXPERTS))
    }
}

/// Name part of kernels for whole runs and for others.
fn kind(in_runs: bool) -> &'static str {
    if in_runs { "aligned" } else { "unaligned" }
}

impl Layer<'_> {
    fn dtype(&self) -> DType {
        self.op.x.dtype()
    }

    fn experts(&self) -> usize {
        self.op.experts.up.len()
    }

    /// `[tokens, experts]` in f32.
    fn logits(&self) -> Result<DeviceBuffer> {
        let (tokens, experts, dtype) = (self.rows.rows, self.experts(), self.dtype());
        let router = View::whole(&self.op.experts.router)?;
        let in_runs = self.x.is_16_byte_aligned()? && router.in_runs(self.run)?;
        let logits = Call::alloc(&self.x, tokens * experts, DType::F32)?;
        let (kernel, grid) = if tokens > MAX_TOKENS_BY_WARPS {
            let kernel = Kernel::new(SIMT, format!("experts_logits_tile_{}_{dtype}", kind(in_runs)));
            (kernel, Grid { blocks: [tokens.div_ceil(SIDE), experts.div_ceil(SIDE), 1], threads: 128 })
        } else {
            let (tokens_per_warp, kind) = match tokens {
                _ if !in_runs => (4, "unaligned"),
                0..=1 => (1, "1"),
                2..=4 => (4, "4"),
                _ => (8, "8"),
            };
            let kernel = Kernel::new(ROUTING, format!("experts_logits_{kind}_{dtype}"));
            (kernel, Grid { blocks: [experts.div_ceil(4), tokens.div_ceil(tokens_per_warp), 1], threads: 4 * 32 })
        };
        let call = Call::new(&self.x, &kernel)?.input(&self.x).input(&router).made(&logits);
        call.numbers(&params![tokens, self.n, self.rows.stride, experts]).run(grid)?;
        Ok(logits)
    }

    fn run_gemv(&self, logits: &DeviceBuffer, y: &DeviceBuffer) -> Result<()> {
        let (e, pairs, dtype) = (&self.op.experts, self.pairs, self.dtype());
        let (up, down) = (Matrices::of(&e.up)?, Matrices::of(&e.down)?);
        let selected = Call::alloc(&self.x, pairs, DType::U32)?;
        let probabilities = Call::alloc(&self.x, pairs, DType::F32)?;
        let hidden = Call::alloc(&self.x, pairs * self.inner, dtype)?;
        let capacity = if self.experts() <= 128 { 128 } else { MAX_EXPERTS };
        let in_runs = up.in_runs && self.x.is_16_byte_aligned()?;
        let warps = 8;
        let columns = warps * if e.gated { ROWS / 2 } else { ROWS };
        let kernel = up.kernel("up", (GEMV, format!("experts_up_{}_{capacity}_{dtype}", kind(in_runs))));
        let call = Call::new(&self.x, &kernel)?
            .input(&self.x)
            .made(logits)
            .made(&selected)
            .made(&probabilities)
            .made(&hidden)
            .numbers(&params![self.inner, self.n, self.rows.stride, self.experts()])
            .numbers(&params![e.top, e.renormalised, e.activation as usize, e.gated]);
        up.add_weights(call, in_runs, capacity)?
            .run(Grid { blocks: [pairs, self.inner.div_ceil(columns), 1], threads: 32 * warps })?;
        let kernel = down.kernel("down", (GEMV, format!("experts_down_{}_{capacity}_{dtype}", kind(down.in_runs))));
        let call = Call::new(&self.x, &kernel)?
            .made(&hidden)
            .made(&selected)
            .made(&probabilities)
            .optional_input(self.bias.as_ref())
            .optional_input(self.residual.as_ref())
            .made(y)
            .numbers(&params![self.n, self.inner, e.top, self.residual_step()?]);
        down.add_weights(call, true, capacity)?
            .run(Grid { blocks: [self.rows.rows, self.n.div_ceil(ROWS), 1], threads: 128 })
    }

    fn run_grouped_gemm(&self, logits: &DeviceBuffer, y: &DeviceBuffer) -> Result<()> {
        let (e, tokens, pairs, dtype) = (&self.op.experts, self.rows.rows, self.pairs, self.dtype());
        let selected = Call::alloc(&self.x, pairs, DType::U32)?;
        let probabilities = Call::alloc(&self.x, pairs, DType::F32)?;
        Call::new(&self.x, &Kernel::new(ROUTING, "experts_top_k"))?
            .made(logits)
            .made(&selected)
            .made(&probabilities)
            .numbers(&params![tokens, self.experts(), e.top, e.renormalised])
            .run(Grid::of(tokens.div_ceil(4), 4 * 32))?;
        let starts = Call::alloc(&self.x, self.experts() + 1, DType::U32)?;
        let sorted = Call::alloc(&self.x, pairs, DType::U32)?;
        Call::new(&self.x, &Kernel::new(ROUTING, "experts_sort"))?
            .made(&selected)
            .made(&starts)
            .made(&sorted)
            .u32(pairs)
            .run(Grid::of(self.experts() + 1, pairs.next_multiple_of(32).min(1024)))?;

        let hidden = Call::alloc(&self.x, pairs * self.inner, dtype)?;
        let parts = Call::alloc(&self.x, pairs * self.n, dtype)?;
        self.tiles(&Projection { weights: &e.up, inner: None, y: &hidden }, &starts, &sorted)?;
        self.tiles(&Projection { weights: &e.down, inner: Some(&hidden), y: &parts }, &starts, &sorted)?;

        let bias = self.bias.as_ref().is_none_or(|b| b.start.is_multiple_of(self.run));
        let residual = self.residual.as_ref().map_or(Ok(true), |r| r.is_16_byte_aligned())?;
        let in_runs = self.n.is_multiple_of(self.run) && bias && residual;
        let run = if in_runs { self.run } else { 1 };
        Call::new(&self.x, &Kernel::new(ROUTING, format!("experts_sum_{}_{dtype}", kind(in_runs))))?
            .made(&parts)
            .made(&probabilities)
            .optional_input(self.bias.as_ref())
            .optional_input(self.residual.as_ref())
            .made(y)
            .numbers(&params![self.n, e.top, self.residual_step()?])
            .run(Grid::along(tokens, self.n / run))
    }

    /// One product of all pairs.
    fn tiles(&self, projection: &Projection<'_>, starts: &DeviceBuffer, sorted: &DeviceBuffer) -> Result<()> {
        let (e, experts) = (&self.op.experts, self.experts());
        let (is_up, matrices) = (projection.inner.is_none(), Matrices::of(projection.weights)?);
        let is_gated = is_up && e.gated;
        let (n, k) = if is_up { (self.inner, self.n) } else { (self.n, self.inner) };
        let in_runs = matrices.in_runs && (!is_up || self.x.is_16_byte_aligned()?);
        let (kernel, tall, wide) = if matrices.quant.is_some() {
            (matrices.kernel("tile", (TILE, String::new())), TALL_IN_BLOCKS, WIDE)
        } else if self.dtype() == DType::F32 {
            (Kernel::new(SIMT, format!("experts_simt_{}", kind(in_runs))), SIDE, SIDE)
        } else {
            // As many rows as the experts fill on average, and as many steps of 64 elements in
            // shared memory as the kernel has.
            let (kind, tall, steps) = match self.pairs / experts {
                _ if !in_runs => ("unaligned", 32, 4),
                0..=24 => ("32", 32, 4),
                25..=96 => ("64", 64, 4),
                _ => ("128", 128, 3),
            };
            let kernel = Kernel::new(TILE, format!("experts_tile_{kind}_{}", self.dtype()));
            (kernel.shared(steps * (tall + WIDE) * 2 * 64), tall, WIDE)
        };
        // Each expert's last tile may be almost empty, and a token occurs once per expert.
        let tiles = (self.pairs / tall + experts).min(experts * self.rows.rows.div_ceil(tall));
        let columns = if is_gated { wide / 2 } else { wide };
        let call = Call::new(&self.x, &kernel)?;
        let call = match projection.inner {
            Some(inner) => call.made(inner),
            None => call.input(&self.x),
        };
        let activation = if is_up { e.activation } else { Activation::None };
        let call = call
            .made(starts)
            .made(sorted)
            .made(projection.y)
            .numbers(&params![n, k, if is_up { self.rows.stride } else { k }])
            .numbers(&params![e.top, experts, activation as usize, is_up, is_gated]);
        matrices
            .add_weights(call, in_runs, MAX_EXPERTS)?
            .run(Grid { blocks: [tiles, n.div_ceil(columns), 1], threads: 128 })
    }

    fn residual_step(&self) -> Result<usize> {
        self.residual.as_ref().map_or(Ok(0), |r| r.rows().map(|rows| rows.stride))
    }
}

/// The up or the down projection.
struct Projection<'a> {
    weights: &'a [Weight],
    /// Input of the down projection, in sorted order; the up projection takes x.
    inner: Option<&'a DeviceBuffer>,
    y: &'a DeviceBuffer,
}
