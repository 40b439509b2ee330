//! Launches `kernel.metal`: choose, sort the pairs of token and expert by expert, multiply twice, add up. Nothing is read back, so
//! grids are as large as the worst case needs, and threadgroups without work end at once.
//!
//! Dispatches: 3 and 2 for every 16 experts; for few pairs, which need no order, 2 and 2 for every 16.

use super::{ExpertsOp, held};
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::linear::Weight;
use crate::quant::metal::{OUTPUTS, SIMDS, TALL, WIDE, words};
use crate::{Activation, DType, Error, Result};

const SOURCE: &str = kernels!("grouped.metal");

/// The products on weights in blocks: a library of their own, so that who has floats does not compile kernels for every format.
const IN_BLOCKS: &str = concat!(
    include_str!("../launch/metal/prelude.metal"),
    include_str!("../quant/formats.metal"),
    include_str!("../quant/products.metal"),
    include_str!("grouped.metal"),
    include_str!("blocks/kernel.metal")
);

/// Experts of one call: their weights are tensors of their own, and a call has 31 arguments.
const AT_ONCE: usize = 16;

pub(super) fn run(op: &ExpertsOp) -> Result<candle_core::Tensor> {
    let (e, x, dtype) = (&op.experts, View::of(&op.x)?, op.x.dtype());
    let (n, inner, tokens) = (e.up[0].k(), e.down[0].k(), x.rows()?.rows);
    let choices = Choices::route(op, &x)?;
    let between = Call::room(&x, choices.pairs * inner, dtype)?;
    let parts = Call::room(&x, choices.pairs * n, dtype)?;
    choices.multiply(op, &Half { weights: &e.up, n: inner, inner: None, y: &between })?;
    choices.multiply(op, &Half { weights: &e.down, n, inner: Some(&between), y: &parts })?;

    let bias = e.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let stride = residual.as_ref().map_or(Ok(0), |r| r.rows().map(|r| r.stride))?;
    // As `Adding` in the kernel.
    let told = params![n, e.top, stride];
    let has = Has { bias: bias.is_some(), residual: residual.is_some(), ..Has::default() };
    let y = Call::room(&x, tokens * n, dtype)?;
    let threads = n.next_multiple_of(32).min(256);
    Call::new(&x, &has.kernel(format!("experts_sum_{dtype}")))?
        .made(&parts)
        .made(&choices.share)
        .input_or(bias.as_ref(), &x)
        .input_or(residual.as_ref(), &x)
        .result(&y)
        .numbers(&told)
        .run(Grid { groups: [n.div_ceil(threads), tokens, 1], threads })?;
    y.tensor(op.x.dims())
}

/// The function constants, which the kernels share.
#[derive(Clone, Copy, Default)]
struct Has {
    fours: bool,
    up: bool,
    gated: bool,
    activation: Activation,
    bias: bool,
    residual: bool,
}

impl Has {
    fn kernel(self, name: String) -> Kernel {
        self.kernel_of(SOURCE, name)
    }

    fn kernel_of(self, source: &'static str, name: String) -> Kernel {
        let kernel = Kernel::new(source, name).flag(self.fours).flag(self.up).flag(self.gated);
        kernel.number(self.activation as u16).flag(self.bias).flag(self.residual)
    }
}

/// One of the two products.
struct Half<'a> {
    weights: &'a [Weight],
    /// Outputs, those of a gate not counted.
    n: usize,
    /// What the second is given; the first takes x.
    inner: Option<&'a DeviceBuffer>,
    y: &'a DeviceBuffer,
}

/// Who was chosen, on the device.
struct Choices {
    pairs: usize,
    /// The expert of each pair, by tokens.
    chosen: DeviceBuffer,
    /// And its probability, in f32.
    share: DeviceBuffer,
    /// Where the pairs of each expert begin once they are sorted, and which they are; not there for few.
    order: Option<(DeviceBuffer, DeviceBuffer)>,
}

impl Choices {
    fn route(op: &ExpertsOp, x: &View) -> Result<Choices> {
        let (e, rows, router) = (&op.experts, x.rows()?, View::whole(&op.experts.router)?);
        let (experts, pairs) = (e.up.len(), rows.rows * e.top);
        let chosen = Call::room(x, pairs, DType::U32)?;
        let share = Call::room(x, pairs, DType::F32)?;
        // As `Routing` in the kernel.
        let told = params![rows.rows, rows.cols, rows.stride, experts, e.top, e.renormalised];
        // Several tokens share what is read of the router.
        let together = if rows.rows > 1 { 4 } else { 1 };
        let has = Has { fours: x.in_fours()? && router.in_fours()?, ..Has::default() };
        Call::new(x, &has.kernel(format!("experts_route{together}_{}", x.dtype())))?
            .input(x)
            .input(&router)
            .result(&chosen)
            .result(&share)
            .numbers(&told)
            .run(Grid { groups: [rows.rows.div_ceil(together), 1, 1], threads: 256 })?;
        // Where an expert has hardly more than one pair, a tile would be empty but for its first row.
        let order = if pairs <= experts.max(8) {
            None
        } else {
            let (starts, sorted) = (Call::room(x, experts + 1, DType::U32)?, Call::room(x, pairs, DType::U32)?);
            Call::new(x, &Has::default().kernel("experts_sort".into()))?
                .made(&chosen)
                .result(&starts)
                .result(&sorted)
                .array(&[pairs as u32])?
                .run(Grid { groups: [experts + 1, 1, 1], threads: 256 })?;
            Some((starts, sorted))
        };
        Ok(Choices { pairs, chosen, share, order })
    }

    /// One product of all pairs.
    fn multiply(&self, op: &ExpertsOp, half: &Half<'_>) -> Result<()> {
        let (x, e, k) = (View::of(&op.x)?, &op.experts, half.weights[0].k());
        let is_up = half.inner.is_none();
        let (stride, mut fours) = if is_up { (x.rows()?.stride, x.in_fours()?) } else { (k, k.is_multiple_of(4)) };
        let Some((quant, tensors)) = held(half.weights) else {
            return Err(Error::call("experts", "weights in several parts or formats"));
        };
        let views = tensors.into_iter().map(View::whole).collect::<Result<Vec<_>>>()?;
        for w in views.iter().filter(|_| quant.is_none()) {
            fours &= w.in_fours()?;
        }
        let gated = is_up && e.gated;
        let activation = if is_up { e.activation } else { Activation::None };
        let has = Has { fours, up: is_up, gated, activation, ..Has::default() };
        let dtype = op.x.dtype();
        let is_many = self.order.is_some();
        // Rows and columns of a tile, large where the experts can fill it; columns of few pairs that a threadgroup makes.
        let (kernel, [tall, wide], few) = match quant {
            Some(quant) => {
                let name = format!("experts_{}_{quant}_{dtype}", if is_many { "tile" } else { "few" });
                (has.kernel_of(IN_BLOCKS, name), [TALL, WIDE], OUTPUTS * SIMDS)
            }
            None => {
                let side = if self.pairs >= 48 * views.len() { 64 } else { 32 };
                let name = if is_many { format!("experts_tile{side}_{dtype}") } else { format!("experts_few_{dtype}") };
                (has.kernel(name), [side, side], 4 * SIMDS)
            }
        };
        let (bytes, grid_of) = (quant.and_then(|quant| quant.bytes(k)).unwrap_or(0), quant.map(words));
        for (i, views) in views.chunks(AT_ONCE).enumerate() {
            // As `Grouped` in the kernel.
            let told = params![half.n, k, stride, e.top, i * AT_ONCE, views.len(), bytes];
            let grid = match self.order {
                Some(_) => {
                    // All pairs may be of these experts, and each expert's last tile may be all but empty.
                    let most = views.len() * (self.pairs / e.top).div_ceil(tall);
                    let tiles = (self.pairs / tall + views.len()).min(most);
                    let columns = if gated { wide / 2 } else { wide };
                    Grid { groups: [tiles, half.n.div_ceil(columns), 1], threads: 128 }
                }
                None => Grid { groups: [half.n.div_ceil(few), self.pairs, 1], threads: 32 * SIMDS },
            };
            let call = Call::new(&x, &kernel)?;
            let call = match half.inner {
                Some(inner) => call.made(inner),
                None => call.input(&x),
            };
            let call = match &self.order {
                Some((starts, sorted)) => call.made(starts).made(sorted),
                None => call.made(&self.chosen).made(&self.chosen),
            };
            let call = call.result(half.y).numbers(&told);
            let weights = (0..AT_ONCE).map(|e| views.get(e).unwrap_or(&views[0]));
            let call = weights.fold(call, |call, w| call.input(w));
            match &grid_of {
                Some(words) => call.array(words)?.run(grid)?,
                None => call.run(grid)?,
            }
        }
        Ok(())
    }
}
