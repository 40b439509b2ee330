//! y = x / sqrt(mean(x²) + eps) · w        sum and normalise in f32, round to T, multiply by w in T

mod cases;
mod composed;
mod cpu;
mod reference;

pub(crate) use cases::cases;

use crate::cpu::Isa;
use crate::ladder::{self, Op, Rung};
use crate::{DType, Error, Result, Tensor, Weights};

/// Weight and eps of a root-mean-square norm: no mean is taken off, no bias added (T5's layer norm, Llama's).
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// `weight` `[size]`.
    pub fn load(w: &Weights, size: usize, eps: f32) -> Result<RmsNorm> {
        if size == 0 {
            return Err(Error::call("rms_norm", "a norm over nothing"));
        }
        Ok(RmsNorm { weight: w.tensor("weight", &[size])?, eps })
    }

    /// Normalises the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let n = self.weight.dims()[0];
        if x.dims().last() != Some(&n) || x.dtype() != self.weight.dtype() {
            let what = format!("x {:?} in {}, weight [{n}] in {}", x.dims(), x.dtype(), self.weight.dtype());
            return Err(Error::call("rms_norm", what));
        }
        ladder::run(RmsNormOp { x: x.clone(), norm: self.clone() })
    }
}

pub(crate) struct RmsNormOp {
    x: Tensor,
    norm: RmsNorm,
}

impl Op for RmsNormOp {
    const NAME: &'static str = "rms_norm";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.x.dims().to_vec(), self.x.dtype())
    }

    fn detail(&self) -> String {
        format!("{}", self.norm.weight.dims()[0])
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: x, its squares and the result, in f32, and the result before its weight.
        if rung == Rung::Composed { 4 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self, isa)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        composed::run(self)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let norm = RmsNorm { weight: to(&self.norm.weight)?, eps: self.norm.eps };
        Ok(RmsNormOp { x: to(&self.x)?, norm })
    }
}
