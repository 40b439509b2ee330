//! Mixture of experts (MoE; Shazeer et al. 2017, arXiv:1701.06538): y = Σ over the top-k experts e
//! of p_e · act(x · Upₑᵀ) · Downₑ + bias, p = softmax(x · Rᵀ), with products in f32.
//!
//! Gated experts compute act(x · Gateₑᵀ) · (x · Upₑᵀ) between their products, with both matrices in
//! one; the probabilities of the selected experts may be renormalized to sum to one; and a residual
//! may be added.
//!
//! A token takes part in the products of its own experts only, and the sum is rounded once. The
//! router R works in f32, so that rounding changes the routing of as few tokens as possible.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::{cases, cases_of_cuda};

use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::linear::Weight;
use crate::{Activation, DType, Device, Error, Linear, Quant, Result, Tensor, Weights};
use std::sync::Arc;

/// Limits of our GPU kernels, in experts and in experts per token: each lane holds one of the
/// selected, and threadgroup memory or registers hold all logits.
const MAX_EXPERTS: usize = 512;
const MAX_SELECTED: usize = 32;

/// The experts of one layer.
#[derive(Clone, Debug)]
pub struct Experts {
    /// f32 `[experts, n]`.
    router: Tensor,
    up: Arc<[Weight]>,
    down: Arc<[Weight]>,
    bias: Option<Tensor>,
    activation: Activation,
    top: usize,
    gated: bool,
    renormalised: bool,
}

impl Experts {
    /// With gated experts: a gate above each up projection, in one matrix of twice the rows.
    pub fn gated(self) -> Result<Experts> {
        let twice = |(u, d): (&Weight, &Weight)| u.n() == 2 * d.k();
        if !self.up.iter().zip(&*self.down).all(twice) {
            return Err(Error::call(
                "experts",
                "gated experts need up projections with twice as many rows as the down projections have columns",
            ));
        }
        Ok(Experts { gated: true, ..self })
    }

    /// With the probabilities of the selected experts renormalized to sum to one.
    pub fn renormalised(self) -> Experts {
        Experts { renormalised: true, ..self }
    }

    /// From the router f32 `[experts, n]`, an up and a down projection per expert, both as
    /// `[outputs, inputs]` and without biases, and one bias for all.
    pub fn new(router: Tensor, parts: ExpertParts<'_>, activation: Activation, top: usize) -> Result<Experts> {
        let weights = |parts: &[Linear]| parts.iter().map(|l| l.parts().0.without_floats()).collect::<Arc<[_]>>();
        let (up, down, bias) = (weights(parts.up), weights(parts.down), parts.bias);
        let n = up.first().map_or(0, Weight::k);
        // Twice as many rows include a gate: see `gated`.
        let fits = |(u, d): (&Weight, &Weight)| [d.k(), 2 * d.k()].contains(&u.n()) && (u.k(), d.n()) == (n, n);
        let fits_together = up.len() == down.len()
            && up.iter().zip(&*down).all(fits)
            && router.dims() == [up.len(), n]
            && router.dtype() == DType::F32
            && bias.as_ref().is_none_or(|b| b.dims() == [n] && b.dtype() == up[0].dtype());
        if !fits_together || !(1..=up.len()).contains(&top) {
            let what = format!(
                "{} up and {} down projections, a router {:?}, {top} experts per token",
                up.len(),
                down.len(),
                router.dims()
            );
            return Err(Error::call("experts", what));
        }
        Ok(Experts { router, up, down, bias, activation, top, gated: false, renormalised: false })
    }

    /// Expert `e` of `experts` from a tensor with all of them stacked, `[experts · rows, columns]`;
    /// `transposed` if the file stores each matrix transposed.
    pub fn part(w: &Weights, name: &str, e: usize, shape: ExpertShape) -> Result<Linear> {
        let ExpertShape { experts, rows, columns, transposed } = shape;
        let all = experts.checked_mul(rows).filter(|_| e < experts);
        let all = all.ok_or_else(|| Error::call("experts", format!("expert {e} of {experts} with {rows} rows")))?;
        Linear::from_rows(w, name, &[all, columns], e * rows..(e + 1) * rows, transposed)
    }

    /// Routes each row of `x` `[tokens, n]` to its top-k experts.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// The same plus `residual`.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let is_ungated = self.up.iter().zip(&*self.down).all(|(u, d)| u.n() == d.k());
        if !is_ungated && !self.gated || residual.is_some_and(|r| r.dims() != x.dims() || r.dtype() != x.dtype()) {
            return Err(Error::call(
                "experts",
                "the shapes of up and down projections, or of x and residual, do not match",
            ));
        }
        if x.dims().len() != 2 || x.dims()[1] != self.up[0].k() || x.dtype() != self.up[0].dtype() {
            let what = format!("x {:?} in {} for experts of {}", x.dims(), x.dtype(), self.up[0].k());
            return Err(Error::call("experts", what));
        }
        ladder::run(ExpertsOp { x: x.clone(), experts: self.clone(), residual: residual.cloned() })
    }
}

/// The tensors of one product, and their quantization: what our GPU kernels take. `None` if an
/// expert's matrix is in several parts, or the experts' formats differ.
fn uniform_tensors(weights: &[Weight]) -> Option<(Option<Quant>, Vec<&Tensor>)> {
    let quant = weights.first()?.only_raw().map(|(quant, _)| quant);
    let tensor = |w| match quant {
        None => Weight::data(w).ok(),
        Some(quant) => w.only_raw().filter(|(other, _)| *other == quant).map(|(_, blocks)| blocks),
    };
    Some((quant, weights.iter().map(tensor).collect::<Option<_>>()?))
}

/// The projections of the experts.
pub struct ExpertParts<'a> {
    /// `[inner, n]` each.
    pub up: &'a [Linear],
    /// `[n, inner]` each.
    pub down: &'a [Linear],
    /// `[n]`.
    pub bias: Option<Tensor>,
}

/// How a tensor stores the experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    /// Number of experts.
    pub experts: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of all.
    pub columns: usize,
    /// Whether rows are inputs rather than outputs.
    pub transposed: bool,
}

pub(crate) struct ExpertsOp {
    x: Tensor,
    experts: Experts,
    residual: Option<Tensor>,
}

impl Op for ExpertsOp {
    const NAME: &'static str = "experts";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        let Experts { up, down, activation, top, gated, .. } = &self.experts;
        let gate = if *gated { ", gated" } else { "" };
        format!("{top} of {}, {} → {}, {activation}{gate}", up.len(), up[0].k(), down[0].k())
    }

    fn fused(&self, device: Device) -> Can {
        let Experts { up, down, top, .. } = &self.experts;
        let fits = |weights: &[Weight]| match uniform_tensors(weights) {
            Some((None, tensors)) => tensors.iter().all(|t| t.dtype() == self.x.dtype()),
            Some((Some(_), _)) => true,
            None => false,
        };
        match device {
            Device::Cuda(_) | Device::Metal(_) if up.len() > MAX_EXPERTS || *top > MAX_SELECTED => {
                Can::no(format!("our kernel selects at most {MAX_SELECTED} of {MAX_EXPERTS} experts"))
            }
            Device::Cuda(_) if !(fits(up) && fits(down)) => {
                Can::no("our kernel takes up and down matrices in the activations' dtype, or each in one block format")
            }
            Device::Metal(_) if uniform_tensors(up).is_none() || uniform_tensors(down).is_none() => {
                Can::no("our kernel takes up and down matrices in one format each, floats or blocks")
            }
            Device::Cpu | Device::Cuda(_) | Device::Metal(_) => Can::Yes,
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let (tokens, n, inner) = (self.x.dims()[0], self.experts.up[0].k(), self.experts.up[0].n());
        let size = self.x.dtype().size();
        match rung {
            // For every pair of token and expert: its expert, its probability, its index in sorted
            // order, and its rows between and after the products; where each expert's pairs begin;
            // and on CUDA the logits.
            Rung::Fused if self.x.device().is_gpu() => {
                let (row, experts) = (size * (self.experts.down[0].k() + n), self.experts.up.len());
                let logits = if matches!(self.x.device(), Device::Cuda(_)) { 4 * tokens * experts } else { 0 };
                tokens * self.experts.top * (3 * 4 + row) + 4 * (experts + 1) + logits
            }
            // The sums in f32, and for one expert at worst all rows, before, between and after its
            // products.
            Rung::Fused => tokens * (4 * n + size * (2 * n + 2 * inner)),
            // Every expert on every row, one after another: in T between its products, the rest in
            // f32. Blocks are dequantized first.
            _ => {
                let floats = |(u, d): (&Weight, &Weight)| u.rows_scratch() + d.rows_scratch();
                let largest = self.experts.up.iter().zip(&*self.experts.down).map(floats).max().unwrap_or(0);
                largest + tokens * (size * (4 * inner + n) + 4 * (6 * n + 8 * self.experts.up.len()))
            }
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let moved = |w: &[Weight]| w.iter().map(|w| w.moved(to)).collect::<Result<Arc<[_]>>>();
        let e = &self.experts;
        let (up, down, bias) = (moved(&e.up)?, moved(&e.down)?, e.bias.as_ref().map(to).transpose()?);
        let experts = Experts { router: to(&e.router)?, up, down, bias, ..e.clone() };
        Ok(ExpertsOp { x: to(&self.x)?, experts, residual: self.residual.as_ref().map(to).transpose()? })
    }
}
