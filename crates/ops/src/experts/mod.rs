//! y = Σ over the k likeliest experts e of p_e · act(x · Upₑᵀ) · Downₑ + bias        products in f32, one rounding of the sum
//!
//! A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538) with the probabilities given: a token takes part in the
//! products of its own experts only.

mod cases;
mod composed;
mod cpu;
mod reference;

pub(crate) use cases::cases;

use crate::cpu::Isa;
use crate::ladder::{self, Op, Rung};
use crate::linear::Weight;
use crate::{Activation, DType, Error, Linear, Result, Tensor, Weights};

/// The experts of one layer.
#[derive(Clone, Debug)]
pub struct Experts {
    up: Vec<Weight>,
    down: Vec<Weight>,
    bias: Option<Tensor>,
    activation: Activation,
    top: usize,
}

impl Experts {
    /// From an up and a down projection per expert, both as `[outputs, inputs]` and without biases, and one bias for all.
    pub fn new(up: &[Linear], down: &[Linear], bias: Option<Tensor>, activation: Activation, top: usize) -> Result<Experts> {
        let weights = |parts: &[Linear]| parts.iter().map(|l| l.parts().0.clone()).collect::<Vec<_>>();
        let (up, down) = (weights(up), weights(down));
        let fits = |(u, d): (&Weight, &Weight)| u.n() == d.k() && (u.k(), d.n()) == (up[0].k(), up[0].k());
        if up.is_empty() || up.len() != down.len() || !up.iter().zip(&down).all(fits) || !(1..=up.len()).contains(&top) {
            return Err(Error::call("experts", format!("{} ups and {} downs, {top} at a time", up.len(), down.len())));
        }
        Ok(Experts { up, down, bias, activation, top })
    }

    /// Expert `e` of `experts` from a tensor that holds them below each other, `[experts · rows, columns]`; `turned` where the
    /// file holds the matrix the other way round.
    pub fn part(w: &Weights, name: &str, e: usize, shape: ExpertShape) -> Result<Linear> {
        let ExpertShape { experts, rows, columns, turned } = shape;
        Linear::from_rows(w, name, &[experts * rows, columns], e * rows..(e + 1) * rows, turned)
    }

    /// Sends each row of `x` `[tokens, n]` through the experts that `probabilities` f32 `[tokens, experts]` likes best.
    pub fn forward(&self, x: &Tensor, probabilities: &Tensor) -> Result<Tensor> {
        let fits = match *x.dims() {
            [tokens, n] => n == self.up[0].k() && *probabilities.dims() == [tokens, self.up.len()],
            _ => false,
        };
        if !fits || probabilities.dtype() != DType::F32 || x.dtype() != self.up[0].dtype() {
            let what = format!("x {:?} in {}, probabilities {:?}", x.dims(), x.dtype(), probabilities.dims());
            return Err(Error::call("experts", what));
        }
        ladder::run(ExpertsOp { x: x.clone(), probabilities: probabilities.clone(), experts: self.clone() })
    }
}

/// How a tensor holds the experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    /// How many.
    pub experts: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of all.
    pub columns: usize,
    /// Whether a row is an input rather than an output.
    pub turned: bool,
}

pub(crate) struct ExpertsOp {
    x: Tensor,
    probabilities: Tensor,
    experts: Experts,
}

impl Op for ExpertsOp {
    const NAME: &'static str = "experts";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.x.dims().to_vec(), self.x.dtype())
    }

    fn detail(&self) -> String {
        let Experts { up, activation, top, .. } = &self.experts;
        format!("{top} of {}, {} → {}, {activation}", up.len(), up[0].k(), up[0].n())
    }

    fn scratch(&self, rung: Rung) -> usize {
        let (tokens, n, inner) = (self.x.dims()[0], self.experts.up[0].k(), self.experts.up[0].n());
        let size = self.x.dtype().size();
        match rung {
            // The sums in f32, and of one expert at worst all rows, before, between and after its products.
            Rung::Fused => tokens * (4 * n + size * (2 * n + inner)),
            // Every expert on every row, one after another: between its products in T, the rest in f32.
            _ => tokens * (size * (2 * inner + n) + 4 * (4 * n + 4 * self.experts.up.len())),
        }
    }

    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self, isa)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        composed::run(self)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let moved = |w: &[Weight]| w.iter().map(|w| w.moved(to)).collect::<Result<Vec<_>>>();
        let Experts { up, down, bias, activation, top } = &self.experts;
        let bias = bias.as_ref().map(to).transpose()?;
        let experts = Experts { up: moved(up)?, down: moved(down)?, bias, activation: *activation, top: *top };
        Ok(ExpertsOp { x: to(&self.x)?, probabilities: to(&self.probabilities)?, experts })
    }
}
