//! y = norm(x · Wᵀ + b + residual)        products, sums and the norm in f32, one rounding to T
//!
//! How a block of an encoder ends its two halves. Of many rows on Hopper it is one launch, whose input to the norm stays in registers;
//! elsewhere, and where one of both is withdrawn, it is the calls of `linear` and `layer_norm` that it stands for. Those are what a plan
//! tells, which does not know the card.

use super::{Linear, LinearOp};
use crate::cpu::Isa;
use crate::ladder::{self, Can, Op};
use crate::{DType, Device, Error, LayerNorm, Result, Tensor};

impl Linear {
    /// The norm of x · Wᵀ + b + residual.
    pub fn forward_normed(&self, x: &Tensor, residual: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
        let linear = self.op(x, None)?;
        let (dims, dtype) = linear.out();
        if residual.dims() == dims && residual.dtype() == dtype && norm.is_kernel_for(&dims, dtype, x.device()) {
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

impl NormedOp {
    #[cfg(cuda)]
    fn is_taken(&self) -> bool {
        !self.x().is_phantom() && super::cuda::Normed::of(&self.linear, &self.residual).is_ok_and(|n| n.is_some())
    }

    #[cfg(not(cuda))]
    fn is_taken(&self) -> bool {
        false
    }
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
        match device {
            Device::Cuda(_) if self.is_taken() => Can::Yes,
            _ => Can::no("made of other calls"),
        }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no("made of other calls")
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        match super::cuda::Normed::of(&self.linear, &self.residual)? {
            Some(normed) => normed.run(&self.linear, &self.norm),
            None => Err(Error::call(Self::NAME, "no kernel with a norm for this call")),
        }
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(NormedOp { linear: self.linear.map(to)?, residual: to(&self.residual)?, norm: self.norm.map(to)? })
    }
}
