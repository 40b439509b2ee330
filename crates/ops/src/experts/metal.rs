//! Launches `kernel.metal`: route, sort the pairs of token and expert by expert, multiply twice,
//! add up. Nothing is read back, so grids have the size of the worst case, and threadgroups without
//! work return at once.
//!
//! Dispatches: 3, plus 2 for every 16 experts. Few pairs need no sorting and take 2, plus 2 for
//! every 16 experts.

use super::{ExpertsOp, uniform_tensors};
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::linear::Weight;
use crate::quant::metal::{OUTPUTS, SIMDS, TALL, WIDE, words};
use crate::{Activation, DType, Error, Result};

const SOURCE: &str = kernels!("grouped.metal");

/// Products with quantized weights: a separate library, so that models in floats do not compile
/// kernels for every block format.
const IN_BLOCKS: &str = concat!(
    include_str!("../launch/metal/prelude.metal"),
    include_str!("../quant/formats.metal"),
    include_str!("../quant/products.metal"),
    include_str!("grouped.metal"),
    include_str!("blocks/kernel.metal")
);

/// Experts per dispatch: each expert's weights are a tensor, and a dispatch has 31 arguments.
const EXPERTS_AT_ONCE: usize = 16;

pub(super) fn run(op: &ExpertsOp) -> Result<candle_core::Tensor> {
    let (e, x, dtype) = (&op.experts, View::of(&op.x)?, op.x.dtype());
    let (n, inner, tokens) = (e.up[0].k(), e.down[0].k(), x.rows()?.rows);
    let routing = Routing::route(op, &x)?;
    let hidden = Call::alloc(&x, routing.pairs * inner, dtype)?;
    let parts = Call::alloc(&x, routing.pairs * n, dtype)?;
    routing.multiply(op, &Projection { weights: &e.up, n: inner, inner: None, y: &hidden })?;
    routing.multiply(op, &Projection { weights: &e.down, n, inner: Some(&hidden), y: &parts })?;

    let bias = e.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let stride = residual.as_ref().map_or(Ok(0), |r| r.rows().map(|r| r.stride))?;
    // As `Adding` in the kernel.
    let shape = params![n, e.top, stride];
    let flags = KernelFlags { bias: bias.is_some(), residual: residual.is_some(), ..KernelFlags::default() };
    let y = Call::alloc(&x, tokens * n, dtype)?;
    let threads = n.next_multiple_of(32).min(256);
    Call::new(&x, &flags.kernel(format!("experts_sum_{dtype}")))?
        .made(&parts)
        .made(&routing.probabilities)
        .input_or(bias.as_ref(), &x)
        .input_or(residual.as_ref(), &x)
        .result(&y)
        .numbers(&shape)
        .run(Grid { groups: [n.div_ceil(threads), tokens, 1], threads })?;
    y.tensor(op.x.dims())
}

/// Function constants, which the kernels share.
#[derive(Clone, Copy, Default)]
struct KernelFlags {
    fours: bool,
    up: bool,
    gated: bool,
    activation: Activation,
    bias: bool,
    residual: bool,
}

impl KernelFlags {
    fn kernel(self, name: String) -> Kernel {
        self.kernel_of(SOURCE, name)
    }

    fn kernel_of(self, source: &'static str, name: String) -> Kernel {
        let kernel = Kernel::new(source, name).flag(self.fours).flag(self.up).flag(self.gated);
        kernel.number(self.activation as u16).flag(self.bias).flag(self.residual)
    }
}

/// The up or the down projection.
struct Projection<'a> {
    weights: &'a [Weight],
    /// Outputs, without those of a gate.
    n: usize,
    /// Input of the down projection; the up projection takes x.
    inner: Option<&'a DeviceBuffer>,
    y: &'a DeviceBuffer,
}

/// The routing, on the device.
struct Routing {
    pairs: usize,
    /// The expert of each pair, by token.
    selected: DeviceBuffer,
    /// Its probability, in f32.
    probabilities: DeviceBuffer,
    /// Where the pairs of each expert begin after sorting, and their indices; `None` for few pairs.
    order: Option<(DeviceBuffer, DeviceBuffer)>,
}

impl Routing {
    fn route(op: &ExpertsOp, x: &View) -> Result<Routing> {
        let (e, rows, router) = (&op.experts, x.rows()?, View::whole(&op.experts.router)?);
        let (experts, pairs) = (e.up.len(), rows.rows * e.top);
        let selected = Call::alloc(x, pairs, DType::U32)?;
        let probabilities = Call::alloc(x, pairs, DType::F32)?;
        // As `Routing` in the kernel.
        let shape = params![rows.rows, rows.cols, rows.stride, experts, e.top, e.renormalised];
        // Several tokens share each read of the router.
        let tokens_per_group = if rows.rows > 1 { 4 } else { 1 };
        let flags = KernelFlags { fours: x.in_fours()? && router.in_fours()?, ..KernelFlags::default() };
        Call::new(x, &flags.kernel(format!("experts_route{tokens_per_group}_{}", x.dtype())))?
            .input(x)
            .input(&router)
            .result(&selected)
            .result(&probabilities)
            .numbers(&shape)
            .run(Grid { groups: [rows.rows.div_ceil(tokens_per_group), 1, 1], threads: 256 })?;
        // With hardly more than one pair per expert, a tile would be empty but for its first row.
        let order = if pairs <= experts.max(8) {
            None
        } else {
            let (starts, sorted) = (Call::alloc(x, experts + 1, DType::U32)?, Call::alloc(x, pairs, DType::U32)?);
            Call::new(x, &KernelFlags::default().kernel("experts_sort".into()))?
                .made(&selected)
                .result(&starts)
                .result(&sorted)
                .array(&[pairs as u32])?
                .run(Grid { groups: [experts + 1, 1, 1], threads: 256 })?;
            Some((starts, sorted))
        };
        Ok(Routing { pairs, selected, probabilities, order })
    }

    /// One product of all pairs.
    fn multiply(&self, op: &ExpertsOp, projection: &Projection<'_>) -> Result<()> {
        let (x, e, k) = (View::of(&op.x)?, &op.experts, projection.weights[0].k());
        let is_up = projection.inner.is_none();
        let (stride, mut fours) = if is_up { (x.rows()?.stride, x.in_fours()?) } else { (k, k.is_multiple_of(4)) };
        let Some((quant, tensors)) = uniform_tensors(projection.weights) else {
            return Err(Error::call(
                "experts",
                "an expert's weights are split into parts, or the experts' formats differ",
            ));
        };
        let views = tensors.into_iter().map(View::whole).collect::<Result<Vec<_>>>()?;
        for w in views.iter().filter(|_| quant.is_none()) {
            fours &= w.in_fours()?;
        }
        let gated = is_up && e.gated;
        let activation = if is_up { e.activation } else { Activation::None };
        let flags = KernelFlags { fours, up: is_up, gated, activation, ..KernelFlags::default() };
        let dtype = op.x.dtype();
        let is_grouped = self.order.is_some();
        // Rows and columns of a tile, large if the experts can fill it; columns per threadgroup for
        // few pairs.
        let (kernel, [tall, wide], gemv_columns) = match quant {
            Some(quant) => {
                let name = format!("experts_{}_{quant}_{dtype}", if is_grouped { "tile" } else { "gemv" });
                (flags.kernel_of(IN_BLOCKS, name), [TALL, WIDE], OUTPUTS * SIMDS)
            }
            None => {
                let side = if self.pairs >= 48 * views.len() { 64 } else { 32 };
                let name =
                    if is_grouped { format!("experts_tile{side}_{dtype}") } else { format!("experts_gemv_{dtype}") };
                (flags.kernel(name), [side, side], 4 * SIMDS)
            }
        };
        let (bytes, quant_table) = (quant.and_then(|quant| quant.bytes(k)).unwrap_or(0), quant.map(words));
        for (i, views) in views.chunks(EXPERTS_AT_ONCE).enumerate() {
            // As `Grouped` in the kernel.
            let shape = params![projection.n, k, stride, e.top, i * EXPERTS_AT_ONCE, views.len(), bytes];
            let grid = match self.order {
                Some(_) => {
                    // All pairs may belong to these experts, and each expert's last tile may be
                    // almost empty.
                    let max_tiles = views.len() * (self.pairs / e.top).div_ceil(tall);
                    let tiles = (self.pairs / tall + views.len()).min(max_tiles);
                    let columns = if gated { wide / 2 } else { wide };
                    Grid { groups: [tiles, projection.n.div_ceil(columns), 1], threads: 128 }
                }
                None => Grid { groups: [projection.n.div_ceil(gemv_columns), self.pairs, 1], threads: 32 * SIMDS },
            };
            let call = Call::new(&x, &kernel)?;
            let call = match projection.inner {
                Some(inner) => call.made(inner),
                None => call.input(&x),
            };
            let call = match &self.order {
                Some((starts, sorted)) => call.made(starts).made(sorted),
                None => call.made(&self.selected).made(&self.selected),
            };
            let call = call.result(projection.y).numbers(&shape);
            let weights = (0..EXPERTS_AT_ONCE).map(|e| views.get(e).unwrap_or(&views[0]));
            let call = weights.fold(call, |call, w| call.input(w));
            match &quant_table {
                Some(words) => call.array(words)?.run(grid)?,
                None => call.run(grid)?,
            }
        }
        Ok(())
    }
}
