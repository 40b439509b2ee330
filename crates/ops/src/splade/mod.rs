//! y = max or Σ over a sequence's tokens of log(1 + max(x · Wᵀ + b, 0))        in f32 throughout
//!
//! SPLADE's sparse embeddings: weights over the vocabulary (Formal et al. 2021, arXiv:2109.10086).
//! The logits of a batch would be tokens × 30,000 numbers or more. They are never stored: each tile
//! of the product is reduced into its sequence's row at once.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;

use crate::cpu::gemm::BLOCK;
use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::linear::Weight;
use crate::replay::{OpScope, op_scope};
use crate::{Activation, DType, Device, Error, Linear, Result, Segments, Tensor};

/// How the tokens of a sequence are reduced to one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splade {
    /// Sum instead of maximum.
    pub sum: bool,
    /// The logarithm twice: log(1 + log(1 + max(x, 0))), which some models were trained with.
    pub twice: bool,
}

impl Splade {
    /// The weight of a logit.
    fn weigh(self, logit: f64) -> f64 {
        let weight = logit.max(0.0).ln_1p();
        if self.twice { weight.ln_1p() } else { weight }
    }
}

/// The weights of each sequence of `x` `[tokens, k]` over the outputs of `vocabulary`, f32
/// `[sequences, outputs]`.
pub fn splade(x: &Tensor, segments: &Segments, vocabulary: &Linear, options: Splade) -> Result<Tensor> {
    let (weight, bias, activation) = vocabulary.parts();
    let fits = *x.dims() == [segments.tokens(), weight.k()] && x.dtype() == weight.dtype();
    if !fits || activation != Activation::None {
        let what = format!(
            "x {:?} in {} for {} packed tokens and a plain {} → {}",
            x.dims(),
            x.dtype(),
            segments.tokens(),
            weight.k(),
            weight.n()
        );
        return Err(Error::call("splade", what));
    }
    let (weight, bias, scope) = (weight.clone(), bias.cloned(), op_scope());
    ladder::run(SpladeOp { x: x.clone(), segments: segments.clone(), scope, weight, bias, options })
}

pub(crate) struct SpladeOp {
    x: Tensor,
    segments: Segments,
    scope: OpScope,
    weight: Weight,
    bias: Option<Tensor>,
    options: Splade,
}

impl Op for SpladeOp {
    const NAME: &'static str = "splade";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.segments.count(), self.weight.n()], DType::F32)
    }

    fn detail(&self) -> String {
        format!("{} → {}, {}", self.weight.k(), self.weight.n(), if self.options.sum { "sum" } else { "max" })
    }

    fn fused(&self, device: Device) -> Can {
        match device {
            Device::Metal(_) | Device::Cuda(_) if self.weight.data().is_err() => {
                Can::no("our kernel takes a vocabulary in floats, and this one is in blocks or in several parts")
            }
            _ => Can::Yes,
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let logits = self.segments.lengths(self.scope).longest() * self.weight.n();
        match rung {
            // Each worker's rows in f32, unless they are f32 already; a GPU needs no scratch.
            Rung::Fused if self.x.dtype() == DType::F32 || self.x.device().is_gpu() => 0,
            Rung::Fused => crate::threads::count() * BLOCK * self.weight.k() * 4,
            // The logits of the longest sequence in T and in f32, and two intermediate results; and
            // the dequantized vocabulary if it is in blocks.
            _ => logits * (self.x.dtype().size() + 3 * 4) + self.weight.rows_scratch(),
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(SpladeOp {
            x: to(&self.x)?,
            segments: self.segments.clone(),
            scope: self.scope,
            weight: self.weight.moved(to)?,
            bias: self.bias.as_ref().map(to).transpose()?,
            options: self.options,
        })
    }
}
