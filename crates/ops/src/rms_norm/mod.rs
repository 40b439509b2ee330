//! y = x / sqrt(mean(x²) + eps) · w        sum and normalize in f32, round to T, multiply by w in T
//!
//! In Gemma's form the factor is 1 + w, and the product is rounded once. A residual may be added to
//! the result.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::{Error, Result, Tensor, Weights};

/// Weight and eps of a root-mean-square norm (RMSNorm), which subtracts no mean and adds no bias
/// (T5's layer norm, Llama's).
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
    /// Whether the factor is 1 + weight (Gemma).
    from_one: bool,
}

impl RmsNorm {
    /// `weight` `[size]`.
    pub fn load(w: &Weights, size: usize, eps: f32) -> Result<RmsNorm> {
        if size == 0 {
            return Err(Error::call("rms_norm", "the size of the norm is 0"));
        }
        Ok(RmsNorm { weight: w.tensor("weight", &[size])?, eps, from_one: false })
    }

    /// The same with the factor 1 + weight (Gemma).
    pub fn from_one(self) -> RmsNorm {
        RmsNorm { from_one: true, ..self }
    }

    /// Normalizes the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// residual + norm(x).
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let n = self.weight.dims()[0];
        let fits = |t: &Tensor| t.dims() == x.dims() && t.dtype() == x.dtype();
        if x.dims().last() != Some(&n) || x.dtype() != self.weight.dtype() || !residual.is_none_or(fits) {
            let residual = residual.map(Tensor::dims);
            let what = format!("x {:?} in {}, weight [{n}], residual {residual:?}", x.dims(), x.dtype());
            return Err(Error::call("rms_norm", what));
        }
        ladder::run(RmsNormOp { x: x.clone(), norm: self.clone(), residual: residual.cloned() })
    }
}

pub(crate) struct RmsNormOp {
    x: Tensor,
    norm: RmsNorm,
    residual: Option<Tensor>,
}

impl Op for RmsNormOp {
    const NAME: &'static str = "rms_norm";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        let from_one = if self.norm.from_one { ", 1 + w" } else { "" };
        let residual = if self.residual.is_some() { ", residual" } else { "" };
        format!("{}{from_one}{residual}", self.norm.weight.dims()[0])
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: x, its squares and the result, in f32, and the result before the weight and
        // before the residual.
        if rung == Rung::Composed { 5 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let norm = RmsNorm { weight: to(&self.norm.weight)?, ..self.norm.clone() };
        Ok(RmsNormOp { x: to(&self.x)?, norm, residual: self.residual.as_ref().map(to).transpose()? })
    }
}
