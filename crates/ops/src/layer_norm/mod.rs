//! y = (s − mean(s)) / sqrt(var(s) + eps) · w + b,  s = x + residual    in f32, one rounding to T
//!
//! The variance is the mean of squared distances from the known mean (two passes): `E[s²] − E[s]²`
//! loses all its digits when the mean is large compared to the spread.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
pub(crate) mod reference;

pub(crate) use cases::cases;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::{DType, Device, Error, Result, Tensor, Weights};

/// Weight, bias and eps of a layer norm.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[size]`, or `[heads, size]` for a norm per head.
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
}

impl LayerNorm {
    /// A norm per head, without a bias: `weight` `[size]` under each of `heads`.
    pub fn of_heads(heads: &[Weights], size: usize, eps: f32) -> Result<LayerNorm> {
        let first =
            heads.first().filter(|_| size > 0).ok_or_else(|| Error::call("layer_norm", "the size of the norm is 0"))?;
        let mut all = Vec::new();
        for head in heads {
            all.extend(head.values("weight", &[size])?);
        }
        Ok(LayerNorm { weight: first.put(&all, &[heads.len(), size])?, bias: None, eps })
    }

    /// `weight` and, if the architecture has one, `bias`, both `[size]`; the oldest files name them
    /// `gamma` and `beta`.
    pub fn load(w: &Weights, size: usize, eps: f32, bias: bool) -> Result<LayerNorm> {
        if size == 0 {
            return Err(Error::call("layer_norm", "the size of the norm is 0"));
        }
        let (weight, beta) = if w.has("gamma")? { ("gamma", "beta") } else { ("weight", "bias") };
        let bias = bias.then(|| w.tensor(beta, &[size])).transpose()?;
        Ok(LayerNorm { weight: w.tensor(weight, &[size])?, bias, eps })
    }

    /// Normalizes the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// Normalizes `x + residual` without writing the sum.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        ladder::run(self.op(x, residual)?)
    }

    /// The call, with its arguments checked.
    fn op(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<LayerNormOp> {
        let [ref heads @ .., n] = *self.weight.dims() else { return Err(Error::call("layer_norm", "no weight")) };
        let heads_fit = heads.is_empty() || x.dims().len() == 3 && x.dims()[1] == heads[0];
        let fits = |t: &Tensor| t.dims() == x.dims() && t.dtype() == x.dtype();
        if x.dims().last() != Some(&n) || !heads_fit || !residual.is_none_or(fits) || x.dtype() != self.weight.dtype() {
            let residual = residual.map(Tensor::dims);
            let what = format!("x {:?} in {}, residual {residual:?}, weight [{n}]", x.dims(), x.dtype());
            return Err(Error::call("layer_norm", what));
        }
        Ok(LayerNormOp { x: x.clone(), residual: residual.cloned(), norm: self.clone() })
    }

    /// Whether this is a norm over the last axis of such a tensor, and our kernel for it is not
    /// withdrawn. Asked by joint calls that end in a norm.
    pub(crate) fn is_kernel_for(&self, dims: &[usize], dtype: DType, device: Device) -> bool {
        let fits = self.weight.dims().len() == 1 && dims.last() == self.weight.dims().first();
        fits && self.weight.dtype() == dtype && ladder::is_allowed::<LayerNormOp>(device, dtype)
    }

    /// Weight, bias and eps, for ops that end in a norm.
    #[cfg(cuda)]
    pub(crate) fn parts(&self) -> (&Tensor, Option<&Tensor>, f32) {
        (&self.weight, self.bias.as_ref(), self.eps)
    }
}

pub(crate) struct LayerNormOp {
    x: Tensor,
    residual: Option<Tensor>,
    norm: LayerNorm,
}

impl Op for LayerNormOp {
    const NAME: &'static str = "layer_norm";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        let residual = if self.residual.is_some() { ", residual" } else { "" };
        let bias = if self.norm.bias.is_some() { "" } else { ", no bias" };
        let heads = match *self.norm.weight.dims() {
            [heads, _] => format!("{heads} heads of "),
            _ => String::new(),
        };
        format!("{heads}{}{residual}{bias}", self.x.dims().last().unwrap_or(&0))
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the sum, the distances from the mean, and two steps of the result, in f32.
        if rung == Rung::Composed { 4 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let norm = LayerNorm {
            weight: to(&self.norm.weight)?,
            bias: self.norm.bias.as_ref().map(to).transpose()?,
            eps: self.norm.eps,
        };
        Ok(LayerNormOp { x: to(&self.x)?, residual: self.residual.as_ref().map(to).transpose()?, norm })
    }
}
