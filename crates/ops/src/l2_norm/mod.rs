//! L2-normalize: y = x / max(‖x‖₂, 1e-12) over the last axis        in f32, one rounding to T

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
use crate::{Result, Tensor};

/// Lower limit of the L2 norm, so that a zero vector stays zero.
const MIN_NORM: f32 = 1e-12;

/// L2-normalizes `x` over the last axis.
pub fn l2_norm(x: &Tensor) -> Result<Tensor> {
    ladder::run(L2NormOp { x: x.clone() })
}

pub(crate) struct L2NormOp {
    x: Tensor,
}

impl Op for L2NormOp {
    const NAME: &'static str = "l2_norm";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        format!("{}", self.x.dims().last().unwrap_or(&0))
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: three stages in f32.
        if rung == Rung::Composed { 3 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(L2NormOp { x: to(&self.x)? })
    }
}
