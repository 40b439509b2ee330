//! y = act(gate) · value, gate and value the two halves of a row        in f32, one rounding to T
//!
//! The gated linear unit between the two products of an MLP (GEGLU, SwiGLU: Shazeer 2020,
//! arXiv:2002.05202). Each row may have a scale, which multiplies its results.

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
    run(GluOp { x: x.clone(), scales: None, activation, gate })
}

/// The same, and each row multiplied by its element of `scales` `[rows, 1]`.
pub fn glu_scaled(x: &Tensor, scales: &Tensor, activation: Activation, gate: Gate) -> Result<Tensor> {
    run(GluOp { x: x.clone(), scales: Some(scales.clone()), activation, gate })
}

fn run(op: GluOp) -> Result<Tensor> {
    let (dims, scales) = (op.x.dims(), op.scales.as_ref());
    let [rows, n] = *dims else {
        return Err(Error::call("glu", format!("x {dims:?} is not [rows, two halves]")));
    };
    if n == 0 || n % 2 == 1 || scales.is_some_and(|s| s.dims() != [rows, 1] || s.dtype() != op.x.dtype()) {
        let scales = scales.map(|s| (s.dims(), s.dtype()));
        let what = format!("x {dims:?} in {}, scales {scales:?}; x is [rows, two halves]", op.x.dtype());
        return Err(Error::call("glu", what));
    }
    ladder::run(op)
}

pub(crate) struct GluOp {
    x: Tensor,
    /// `[rows, 1]`.
    scales: Option<Tensor>,
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
        let scaled = if self.scales.is_some() { ", scaled rows" } else { "" };
        format!("2 × {}, {}{scaled}", self.half(), self.activation)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed, in f32: x, the gate and four steps of its activation, and the products.
        if rung == Rung::Composed { 4 * 4 * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(GluOp { x: to(&self.x)?, scales: self.scales.as_ref().map(to).transpose()?, ..*self })
    }
}
