//! y = act(gate) · value, gate and value the two halves of a row        in f32, one rounding to T
//!
//! The gated linear unit between the two products of an MLP (GEGLU, SwiGLU: Shazeer 2020,
//! arXiv:2002.05202).

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;
pub(crate) use cpu::gated;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::{Activation, DType, Error, Result, Tensor};

/// Which half of a row goes through the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// act(x[..n]) · x[n..].
    First,
    /// x[..n] · act(x[n..]).
    Second,
}

/// Multiplies the halves of each row of `x` `[rows, 2n]`, one of them activated, to `[rows, n]`.
pub fn glu(x: &Tensor, activation: Activation, gate: Gate) -> Result<Tensor> {
    match *x.dims() {
        [_, n] if n > 0 && n % 2 == 0 => ladder::run(GluOp { x: x.clone(), activation, gate }),
        ref other => Err(Error::call("glu", format!("x {other:?} is not [rows, two halves]"))),
    }
}

pub(crate) struct GluOp {
    x: Tensor,
    activation: Activation,
    gate: Gate,
}

impl GluOp {
    fn half(&self) -> usize {
        self.x.dims()[1] / 2
    }
}

impl Op for GluOp {
    const NAME: &'static str = "glu";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.x.dims()[0], self.half()], self.x.dtype())
    }

    fn detail(&self) -> String {
        format!("2 × {}, {}", self.half(), self.activation)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed, in f32: x, the gate and four steps of its activation, and the product.
        if rung == Rung::Composed { 4 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(GluOp { x: to(&self.x)?, ..*self })
    }
}
