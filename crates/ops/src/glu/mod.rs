//! y = act(gate) · value, gate and value the two halves of a row        in f32, one rounding to T
//!
//! The gated linear unit between the two products of an MLP (GEGLU, SwiGLU: Shazeer 2020,
//! arXiv:2002.05202). Each row may have a scale, which multiplies its results. Without a gate, y =
//! act(x): the activation of a product that something is added to first.

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
    run(GluOp { x: x.clone(), scales: None, activation, gate: Some(gate) })
}

/// The same, and each row multiplied by its element of `scales` `[rows, 1]`.
pub fn glu_scaled(x: &Tensor, scales: &Tensor, activation: Activation, gate: Gate) -> Result<Tensor> {
    run(GluOp { x: x.clone(), scales: Some(scales.clone()), activation, gate: Some(gate) })
}

/// act(x) of every element of `x` `[rows, n]`. An activation that directly follows a product belongs
/// to [`Linear::with`](crate::Linear::with) instead.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    if x.dims().len() != 2 || x.dims()[1] == 0 {
        return Err(Error::call("glu", format!("x {:?} is not [rows, n]", x.dims())));
    }
    ladder::run(GluOp { x: x.clone(), scales: None, activation, gate: None })
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
    /// `None`: all of a row goes through the activation.
    gate: Option<Gate>,
}

impl GluOp {
    /// The width of a result.
    fn width(&self) -> usize {
        self.x.dims()[1] / if self.gate.is_some() { 2 } else { 1 }
    }
}

impl Op for GluOp {
    const NAME: &'static str = "glu";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.x.dims()[0], self.width()], self.x.dtype())
    }

    fn detail(&self) -> String {
        let scaled = if self.scales.is_some() { ", scaled rows" } else { "" };
        let halves = if self.gate.is_some() { "2 × " } else { "" };
        format!("{halves}{}, {}{scaled}", self.width(), self.activation)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed, in f32: x, the gate and four steps of its activation, and the products; without a
        // gate, those steps are as wide as x.
        let steps = if self.gate.is_some() { 4 } else { 6 };
        if rung == Rung::Composed { 4 * steps * self.x.dims().iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(GluOp { x: to(&self.x)?, scales: self.scales.as_ref().map(to).transpose()?, ..*self })
    }
}
