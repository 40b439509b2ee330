//! Launches `kernel.metal`: choose, sort the pairs of token and expert by expert, multiply twice, add up. Nothing is read back, so
//! grids are as large as the worst case needs, and threadgroups without work end at once.
//!
//! Dispatches: 3 and 2 for every 16 experts; for few pairs, which need no order, 2 and 2 for every 16.

use super::ExpertsOp;
use crate::launch::metal::buffers::Made;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::linear::Weight;
use crate::{Activation, DType, Result};

const SOURCE: &str = kernels!();

/// Experts of one call: their weights are tensors of their own, and a call has 31 arguments.
const AT_ONCE: usize = 16;

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Routing {
    tokens: u32,
    n: u32,
    stride: u32,
    experts: u32,
    top: u32,
    renormalised: u32,
}

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Grouped {
    n: u32,
    k: u32,
    stride: u32,
    top: u32,
    first_expert: u32,
    experts: u32,
}

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Adding {
    n: u32,
    top: u32,
    residual_stride: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Routing {}
// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Grouped {}
// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Adding {}

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
    let stride = residual.as_ref().map_or(Ok(0), |r| r.rows().map(|r| r.stride as u32))?;
    let told = Adding { n: n as u32, top: e.top as u32, residual_stride: stride };
    let has = Has { bias: bias.is_some(), residual: residual.is_some(), ..Has::default() };
    let y = Call::room(&x, tokens * n, dtype)?;
    let threads = n.next_multiple_of(32).min(256);
    Call::new(&x, &has.kernel(format!("experts_sum_{dtype}")))?
        .made(&parts)
        .made(&choices.share)
        .input_or(bias.as_ref(), &x)
        .input_or(residual.as_ref(), &x)
        .result(&y)
        .told(&told)
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
        let kernel = Kernel::new(SOURCE, name).flag(self.fours).flag(self.up).flag(self.gated);
        kernel.number(self.activation as u16).flag(self.bias).flag(self.residual)
    }
}

/// One of the two products.
struct Half<'a> {
    weights: &'a [Weight],
    /// Outputs, those of a gate not counted.
    n: usize,
    /// What the second is given; the first takes x.
    inner: Option<&'a Made>,
    y: &'a Made,
}

/// Who was chosen, on the device.
struct Choices {
    pairs: usize,
    /// The expert of each pair, by tokens.
    chosen: Made,
    /// And its probability, in f32.
    share: Made,
    /// Where the pairs of each expert begin once they are sorted, and which they are; not there for few.
    order: Option<(Made, Made)>,
}

impl Choices {
    fn route(op: &ExpertsOp, x: &View) -> Result<Choices> {
        let (e, rows, router) = (&op.experts, x.rows()?, View::whole(&op.experts.router)?);
        let (experts, pairs) = (e.up.len(), rows.rows * e.top);
        let chosen = Call::room(x, pairs, DType::U32)?;
        let share = Call::room(x, pairs, DType::F32)?;
        let told = Routing {
            tokens: rows.rows as u32,
            n: rows.cols as u32,
            stride: rows.stride as u32,
            experts: experts as u32,
            top: e.top as u32,
            renormalised: u32::from(e.renormalised),
        };
        // Several tokens share what is read of the router.
        let together = if rows.rows > 1 { 4 } else { 1 };
        let has = Has { fours: x.in_fours()? && router.in_fours()?, ..Has::default() };
        Call::new(x, &has.kernel(format!("experts_route{together}_{}", x.dtype())))?
            .input(x)
            .input(&router)
            .result(&chosen)
            .result(&share)
            .told(&told)
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
        let views = half.weights.iter().map(|w| View::whole(w.data()?)).collect::<Result<Vec<_>>>()?;
        for w in &views {
            fours &= w.in_fours()?;
        }
        let gated = is_up && e.gated;
        let activation = if is_up { e.activation } else { Activation::None };
        let has = Has { fours, up: is_up, gated, activation, ..Has::default() };
        // Large tiles where the experts can fill them.
        let side = if self.pairs >= 48 * views.len() { 64 } else { 32 };
        let name = if self.order.is_some() { format!("tile{side}") } else { "few".to_string() };
        let kernel = has.kernel(format!("experts_{name}_{}", op.x.dtype()));
        for (i, views) in views.chunks(AT_ONCE).enumerate() {
            let told = Grouped {
                n: half.n as u32,
                k: k as u32,
                stride: stride as u32,
                top: e.top as u32,
                first_expert: (i * AT_ONCE) as u32,
                experts: views.len() as u32,
            };
            let grid = match self.order {
                Some(_) => {
                    // All pairs may be of these experts, and each expert's last tile may be all but empty.
                    let most = views.len() * (self.pairs / e.top).div_ceil(side);
                    let tiles = (self.pairs / side + views.len()).min(most);
                    let columns = if gated { side / 2 } else { side };
                    Grid { groups: [tiles, half.n.div_ceil(columns), 1], threads: 128 }
                }
                None => Grid { groups: [half.n.div_ceil(8), self.pairs, 1], threads: 64 },
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
            let call = call.result(half.y).told(&told);
            let weights = (0..AT_ONCE).map(|e| views.get(e).unwrap_or(&views[0]));
            weights.fold(call, |call, w| call.input(w)).run(grid)?;
        }
        Ok(())
    }
}
