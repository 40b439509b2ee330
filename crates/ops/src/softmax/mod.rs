//! y = exp(x − max(x)) / Σ exp(x − max(x)) over the last axis        in f32, one rounding to T

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;
pub(crate) use cpu::exp_row;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::{Error, Result, Tensor};

/// Probabilities from scores, over the last axis.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if x.dims().last().is_none_or(|n| *n == 0) {
        return Err(Error::call("softmax", format!("x {:?} has no scores", x.dims())));
    }
    ladder::run(SoftmaxOp { x: x.clone() })
}

pub(crate) struct SoftmaxOp {
    x: Tensor,
}

impl Op for SoftmaxOp {
    const NAME: &'static str = "softmax";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        format!("over {}", self.x.dims().last().unwrap_or(&0))
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: three stages in f32.
        if rung == Rung::Composed { 3 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(SoftmaxOp { x: to(&self.x)? })
    }
}
