//! Launches `kernel.cu` and the products: the router's logits, and then for few pairs of token and expert `few.cu`, which chooses, multiplies
//! and adds up in two launches. Many are chosen, sorted by expert, multiplied in tiles (`tile.cu`, in f32 `plain.cu`) and added up, in
//! five. Nothing is read back, so grids are as large as the worst case needs, and blocks without work end at once.
//!
//! Matrices in GGUF's blocks have kernels of their own for the same launches (`blocks/`), each of the two products for itself. There are
//! no tiles of theirs in f32, which is for checks: there every pair is on its own, however many they are.

use super::{ExpertsOp, MOST_EXPERTS, held};
use crate::launch::cuda::buffers::DeviceBuffer;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::launch::strided::Rows;
use crate::linear::Weight;
use crate::quant::cuda::{codes, is_plain, number};
use crate::{Activation, DType, Error, Quant, Result};

const ROUTING: Binary = binary!("experts");
const FEW: Binary = binary!("experts_few");
const TILE: Binary = binary!("experts_tile");
const PLAIN: Binary = binary!("experts_plain");

/// Tokens up to which logits are made by warps that read the router each for themselves.
const FEW_TOKENS: usize = 256;

/// Rows and columns of a tile in f32, and columns of one in halves.
const SIDE: usize = 64;
const WIDE: usize = 128;

/// Rows of a tile in blocks, of as many columns as one in halves.
const TALL_IN_BLOCKS: usize = 64;

/// Columns of a block of `down` in `few.cu`, and rows of matrices that a warp of `up` has.
const ROWS: usize = 4;

pub(super) fn run(op: &ExpertsOp) -> Result<candle_core::Tensor> {
    let (e, x) = (&op.experts, View::of(&op.x)?);
    let rows = x.rows()?;
    let (n, inner) = (e.up[0].k(), e.down[0].k());
    let y = Call::room(&x, rows.rows * n, op.x.dtype())?;
    let bias = e.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let layer =
        Layer { op, rows, pairs: rows.rows * e.top, n, inner, run: 16 / op.x.dtype().size(), x, bias, residual };
    let logits = layer.logits()?;
    let has_blocks = [&e.up, &e.down].into_iter().any(|weights| weights[0].only_raw().is_some());
    // Where an expert has hardly more than one pair, a tile would be empty but for its first row.
    if layer.pairs <= e.up.len().max(8) || (has_blocks && layer.dtype() == DType::F32) {
        layer.few(&logits, &y)?;
    } else {
        layer.many(&logits, &y)?;
    }
    y.tensor(op.x.dims())
}

struct Layer<'a> {
    op: &'a ExpertsOp,
    x: View,
    rows: Rows,
    /// Of token and expert.
    pairs: usize,
    n: usize,
    inner: usize,
    /// Elements of 16 bytes.
    run: usize,
    bias: Option<View>,
    residual: Option<View>,
}

/// The experts' matrices of one product.
struct Matrices {
    addresses: Vec<u64>,
    /// The format of their blocks.
    quant: Option<Quant>,
    /// Of the activations.
    dtype: DType,
    /// Bytes of a row.
    row: usize,
    /// Whether their rows are whole runs of 16 bytes, or of blocks the first is.
    in_runs: bool,
}

impl Matrices {
    fn of(weights: &[Weight]) -> Result<Matrices> {
        let Some((quant, tensors)) = held(weights) else {
            return Err(Error::call("experts", "weights in several parts, or in several formats"));
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
            _ => Err(Error::call("experts", format!("rows of {k} in {quant}, or blocks that begin anywhere"))),
        }
    }

    /// The kernel of that kind for their blocks, or the one for floats.
    fn kernel(&self, kind: &str, (binary, floats): (Binary, String)) -> Kernel {
        let Some(quant) = self.quant else { return Kernel::new(binary, floats) };
        match (kind, is_plain(quant)) {
            ("tile", true) => {
                Kernel::new(binary!("experts_blocks_tile_plain"), format!("experts_tile_{quant}_{}", self.dtype))
            }
            ("tile", false) => {
                Kernel::new(binary!("experts_blocks_tile_other"), format!("experts_tile_{quant}_{}", self.dtype))
            }
            (_, true) => Kernel::new(binary!("experts_blocks_few_plain"), format!("experts_{kind}_{quant}")),
            (_, false) => Kernel::new(binary!("experts_blocks_few_other"), format!("experts_{kind}_{quant}")),
        }
    }

    /// A kernel's last parameters: the matrices, of which one for floats has room for so many, and before them what blocks need.
    fn told(&self, call: Call, in_runs: bool, room: usize) -> Result<Call> {
        let Some(quant) = self.quant else { return Ok(call.addresses(&self.addresses, room)) };
        let call = call.table(codes(quant))?.numbers(&params![self.row, number(self.dtype), in_runs]);
        Ok(call.addresses(&self.addresses, MOST_EXPERTS))
    }
}

/// What kernels for whole runs and for others are called.
fn kind(in_runs: bool) -> &'static str {
    if in_runs { "runs" } else { "odd" }
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
        let in_runs = self.x.in_sixteens()? && router.in_runs(self.run)?;
        let logits = Call::room(&self.x, tokens * experts, DType::F32)?;
        let (kernel, grid) = if tokens > FEW_TOKENS {
            let kernel = Kernel::new(PLAIN, format!("experts_many_{}_{dtype}", kind(in_runs)));
            (kernel, Grid { blocks: [tokens.div_ceil(SIDE), experts.div_ceil(SIDE), 1], threads: 128 })
        } else {
            let (together, kind) = match tokens {
                _ if !in_runs => (4, "odd"),
                0..=1 => (1, "1"),
                2..=4 => (4, "4"),
                _ => (8, "8"),
            };
            let kernel = Kernel::new(ROUTING, format!("experts_logits_{kind}_{dtype}"));
            (kernel, Grid { blocks: [experts.div_ceil(4), tokens.div_ceil(together), 1], threads: 4 * 32 })
        };
        let call = Call::new(&self.x, &kernel)?.input(&self.x).input(&router).made(&logits);
        call.numbers(&params![tokens, self.n, self.rows.stride, experts]).run(grid)?;
        Ok(logits)
    }

    fn few(&self, logits: &DeviceBuffer, y: &DeviceBuffer) -> Result<()> {
        let (e, pairs, dtype) = (&self.op.experts, self.pairs, self.dtype());
        let (up, down) = (Matrices::of(&e.up)?, Matrices::of(&e.down)?);
        let chosen = Call::room(&self.x, pairs, DType::U32)?;
        let share = Call::room(&self.x, pairs, DType::F32)?;
        let between = Call::room(&self.x, pairs * self.inner, dtype)?;
        let room = if self.experts() <= 128 { 128 } else { MOST_EXPERTS };
        let in_runs = up.in_runs && self.x.in_sixteens()?;
        let warps = 8;
        let columns = warps * if e.gated { ROWS / 2 } else { ROWS };
        let kernel = up.kernel("up", (FEW, format!("experts_up_{}_{room}_{dtype}", kind(in_runs))));
        let call = Call::new(&self.x, &kernel)?
            .input(&self.x)
            .made(logits)
            .made(&chosen)
            .made(&share)
            .made(&between)
            .numbers(&params![self.inner, self.n, self.rows.stride, self.experts()])
            .numbers(&params![e.top, e.renormalised, e.activation as usize, e.gated]);
        up.told(call, in_runs, room)?
            .run(Grid { blocks: [pairs, self.inner.div_ceil(columns), 1], threads: 32 * warps })?;
        let kernel = down.kernel("down", (FEW, format!("experts_down_{}_{room}_{dtype}", kind(down.in_runs))));
        let call = Call::new(&self.x, &kernel)?
            .made(&between)
            .made(&chosen)
            .made(&share)
            .maybe(self.bias.as_ref())
            .maybe(self.residual.as_ref())
            .made(y)
            .numbers(&params![self.n, self.inner, e.top, self.residual_step()?]);
        down.told(call, true, room)?.run(Grid { blocks: [self.rows.rows, self.n.div_ceil(ROWS), 1], threads: 128 })
    }

    fn many(&self, logits: &DeviceBuffer, y: &DeviceBuffer) -> Result<()> {
        let (e, tokens, pairs, dtype) = (&self.op.experts, self.rows.rows, self.pairs, self.dtype());
        let chosen = Call::room(&self.x, pairs, DType::U32)?;
        let share = Call::room(&self.x, pairs, DType::F32)?;
        Call::new(&self.x, &Kernel::new(ROUTING, "experts_choose"))?
            .made(logits)
            .made(&chosen)
            .made(&share)
            .numbers(&params![tokens, self.experts(), e.top, e.renormalised])
            .run(Grid::of(tokens.div_ceil(4), 4 * 32))?;
        let starts = Call::room(&self.x, self.experts() + 1, DType::U32)?;
        let sorted = Call::room(&self.x, pairs, DType::U32)?;
        Call::new(&self.x, &Kernel::new(ROUTING, "experts_sort"))?
            .made(&chosen)
            .made(&starts)
            .made(&sorted)
            .u32(pairs)
            .run(Grid::of(self.experts() + 1, pairs.next_multiple_of(32).min(1024)))?;

        let between = Call::room(&self.x, pairs * self.inner, dtype)?;
        let parts = Call::room(&self.x, pairs * self.n, dtype)?;
        self.tiles(&Half { weights: &e.up, inner: None, y: &between }, &starts, &sorted)?;
        self.tiles(&Half { weights: &e.down, inner: Some(&between), y: &parts }, &starts, &sorted)?;

        let bias = self.bias.as_ref().is_none_or(|b| b.start.is_multiple_of(self.run));
        let residual = self.residual.as_ref().map_or(Ok(true), |r| r.in_sixteens())?;
        let in_runs = self.n.is_multiple_of(self.run) && bias && residual;
        let run = if in_runs { self.run } else { 1 };
        Call::new(&self.x, &Kernel::new(ROUTING, format!("experts_sum_{}_{dtype}", kind(in_runs))))?
            .made(&parts)
            .made(&share)
            .maybe(self.bias.as_ref())
            .maybe(self.residual.as_ref())
            .made(y)
            .numbers(&params![self.n, e.top, self.residual_step()?])
            .run(Grid::along(tokens, self.n / run))
    }

    /// One product of all pairs.
    fn tiles(&self, half: &Half<'_>, starts: &DeviceBuffer, sorted: &DeviceBuffer) -> Result<()> {
        let (e, experts) = (&self.op.experts, self.experts());
        let (is_up, matrices) = (half.inner.is_none(), Matrices::of(half.weights)?);
        let is_gated = is_up && e.gated;
        let (n, k) = if is_up { (self.inner, self.n) } else { (self.n, self.inner) };
        let in_runs = matrices.in_runs && (!is_up || self.x.in_sixteens()?);
        let (kernel, tall, wide) = if matrices.quant.is_some() {
            (matrices.kernel("tile", (TILE, String::new())), TALL_IN_BLOCKS, WIDE)
        } else if self.dtype() == DType::F32 {
            (Kernel::new(PLAIN, format!("experts_plain_{}", kind(in_runs))), SIDE, SIDE)
        } else {
            // As tall as the experts can fill on average, and as many steps of 64 elements in shared memory as the kernel has.
            let (kind, tall, steps) = match self.pairs / experts {
                _ if !in_runs => ("odd", 32, 4),
                0..=24 => ("32", 32, 4),
                25..=96 => ("64", 64, 4),
                _ => ("128", 128, 3),
            };
            let kernel = Kernel::new(TILE, format!("experts_tile_{kind}_{}", self.dtype()));
            (kernel.shared(steps * (tall + WIDE) * 2 * 64), tall, WIDE)
        };
        // Each expert's last tile may be all but empty, and it has a token once.
        let tiles = (self.pairs / tall + experts).min(experts * self.rows.rows.div_ceil(tall));
        let columns = if is_gated { wide / 2 } else { wide };
        let call = Call::new(&self.x, &kernel)?;
        let call = match half.inner {
            Some(inner) => call.made(inner),
            None => call.input(&self.x),
        };
        let activation = if is_up { e.activation } else { Activation::None };
        let call = call
            .made(starts)
            .made(sorted)
            .made(half.y)
            .numbers(&params![n, k, if is_up { self.rows.stride } else { k }])
            .numbers(&params![e.top, experts, activation as usize, is_up, is_gated]);
        matrices.told(call, in_runs, MOST_EXPERTS)?.run(Grid { blocks: [tiles, n.div_ceil(columns), 1], threads: 128 })
    }

    fn residual_step(&self) -> Result<usize> {
        self.residual.as_ref().map_or(Ok(0), |r| r.rows().map(|rows| rows.stride))
    }
}

/// One of the two products.
struct Half<'a> {
    weights: &'a [Weight],
    /// What the second is given, in sorted order; the first takes x.
    inner: Option<&'a DeviceBuffer>,
    y: &'a DeviceBuffer,
}
