//! y = norm(x · Wᵀ + b + residual)        products, sums and the norm in f32, one rounding to T
//!
//! How a block of an encoder ends its two halves. Of many rows on CUDA it is one launch, whose input to the norm stays in registers;
//! elsewhere, and where that is withdrawn, it is the calls of `linear` and `layer_norm` that it stands for.

use super::{Linear, LinearOp};
use crate::cpu::Isa;
use crate::ladder::{self, Can, Op, Rung};
use crate::{Activation, DType, Device, Error, LayerNorm, Result, Tensor};

/// Widths that blocks have all of a row of.
const WIDTHS: [usize; 2] = [384, 768];

/// Rows from which on there are tiles for most processors.
const MANY: usize = 6144;

impl Linear {
    /// The norm of x · Wᵀ + b + residual.
    pub fn forward_normed(&self, x: &Tensor, residual: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
        let linear = self.op(x, None)?;
        let (dims, dtype) = linear.out();
        if residual.dims() == dims && residual.dtype() == dtype && norm.is_of(&dims, dtype) {
            let op = NormedOp { linear, residual: residual.clone(), norm: norm.clone() };
            if ladder::is_fused(&op) {
                return ladder::run(op);
            }
        }
        norm.forward_residual(&self.forward(x)?, residual)
    }
}

struct NormedOp {
    linear: LinearOp,
    residual: Tensor,
    norm: LayerNorm,
}

impl Op for NormedOp {
    const NAME: &'static str = "linear";

    fn x(&self) -> &Tensor {
        self.linear.x()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        self.linear.out()
    }

    fn detail(&self) -> String {
        format!("{}, residual, norm", self.linear.detail())
    }

    fn fused(&self, device: Device) -> Can {
        let LinearOp { x, weight, activation, .. } = &self.linear;
        let rows = x.dims().iter().product::<usize>() / weight.k.max(1);
        let is_many = rows >= MANY && WIDTHS.contains(&weight.n) && *activation == Activation::None;
        let is_half = x.dtype().size() == 2 && weight.only_rows().is_some_and(|w| w.dtype() == x.dtype());
        match device {
            Device::Cuda(_) if is_many && is_half => Can::Yes,
            _ => Can::no("made of other calls"),
        }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no("made of other calls")
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Where a card has no kernel that does both, the product is there between two launches.
        let (dims, dtype) = self.out();
        self.linear.scratch(rung) + dims.iter().product::<usize>() * dtype.size()
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        if let Some(y) = super::cuda::normed(&self.linear, &self.residual, &self.norm)? {
            return Ok(y);
        }
        let x = self.x();
        let y = Tensor::made(super::cuda::run(&self.linear)?, x.dtype(), x.device());
        self.norm.op(&y, Some(&self.residual))?.cuda()
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(NormedOp { linear: self.linear.map(to)?, residual: to(&self.residual)?, norm: self.norm.map(to)? })
    }
}
