//! y = norm(x · Wᵀ + b + residual)        products, sums and the norm in f32, one rounding to T
//!
//! Each half of an encoder block ends with this. For many rows on Hopper it is one launch, whose
//! input to the norm stays in registers. Elsewhere, or if doctor has withdrawn either op, it
//! becomes the calls of `linear` and `layer_norm` that it stands for. A plan does not know the card
//! and lists those two calls.

use super::{Linear, LinearOp};
use crate::ladder::{self, Joint, Op};
use crate::{DType, Device, LayerNorm, Result, Tensor};

impl Linear {
    /// The norm of x · Wᵀ + b + residual.
    pub fn forward_normed(&self, x: &Tensor, residual: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
        let linear = self.op(x, None)?;
        let (dims, dtype) = linear.out();
        let fits = residual.dims() == dims && residual.dtype() == dtype;
        if fits
            && norm.is_kernel_for(&dims, dtype, x.device())
            && let Some(y) = ladder::whole(&Normed { linear, residual, norm })
        {
            return y;
        }
        norm.forward_residual(&self.forward(x)?, residual)
    }
}

#[cfg_attr(not(cuda), allow(dead_code, reason = "other devices run two calls"))]
struct Normed<'a> {
    linear: LinearOp,
    residual: &'a Tensor,
    norm: &'a LayerNorm,
}

impl Joint for Normed<'_> {
    const NAME: &'static str = LinearOp::NAME;

    fn x(&self) -> &Tensor {
        self.linear.x()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        self.linear.out()
    }

    fn detail(&self) -> String {
        format!("{}, residual, norm", self.linear.detail())
    }

    #[cfg(cuda)]
    fn is_taken(&self, device: Device) -> bool {
        let is_there = matches!(device, Device::Cuda(_)) && !self.x().is_phantom();
        is_there && super::cuda::Normed::of(&self.linear, self.residual).is_ok_and(|normed| normed.is_some())
    }

    #[cfg(not(cuda))]
    fn is_taken(&self, _: Device) -> bool {
        false
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        let normed = super::cuda::Normed::of(&self.linear, self.residual)?;
        normed.ok_or_else(|| crate::Error::call(Self::NAME, "no kernel with a norm"))?.run(&self.linear, self.norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Input, weights};
    use crate::{Ladder, Place, Policy};

    /// A plan does not know the card, and must not count less memory than the two calls take.
    #[test]
    fn plan_traces_linear_and_layer_norm_separately() {
        let (rows, n, place) = (10_000, 384, Place::phantom(Device::Cuda(0)));
        let ladder = Ladder::new(Policy::default());
        let (dims, steps) = ladder.trace(|| {
            let zeros = |dims: &[usize]| {
                Input::new(dims, DType::F16, {
                    let n = dims.iter().product();
                    move || vec![0.0; n]
                })
            };
            let (w, b) = (zeros(&[n, n]), zeros(&[n]));
            let linear = Linear::load(&weights(&[("weight", &w), ("bias", &b)], &place), n, n, true).unwrap();
            let norm = LayerNorm::load(&weights(&[("weight", &b), ("bias", &b)], &place), n, 1e-5, true).unwrap();
            let x = zeros(&[rows, n]).on(&place).unwrap();
            linear.forward_normed(&x, &x, &norm).unwrap().dims().to_vec()
        });
        assert_eq!(dims, [rows, n]);
        assert_eq!(steps.iter().map(|step| step.op).collect::<Vec<_>>(), ["linear", "layer_norm"]);
    }
}
