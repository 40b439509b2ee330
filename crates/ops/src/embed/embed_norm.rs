//! y = norm(Σ tableᵢ[idsᵢ]), summed and normalized in f32 with one rounding to T.
//!
//! The first step of an encoder. On CUDA it is one launch, for rows of up to 1,024 elements in
//! whole runs of 16 bytes; on other devices, and where doctor has withdrawn one of the two kernels,
//! it becomes calls of `embed` and `layer_norm`, which are also what a plan lists.

use super::EmbedOp;
use crate::ladder::{self, Joint, Op};
use crate::{DType, Device, LayerNorm, Result, Tensor};

/// The norm of the sum of the rows: see [`super::embed`].
pub fn embed_normed(pairs: &[(&Tensor, &Tensor)], norm: &LayerNorm) -> Result<Tensor> {
    let embed = EmbedOp::checked(pairs)?;
    let (dims, dtype) = embed.out();
    if norm.is_kernel_for(&dims, dtype, embed.x().device())
        && let Some(y) = ladder::whole(&EmbedNormOp { embed: &embed, norm })
    {
        return y;
    }
    norm.forward(&ladder::run(embed)?)
}

#[cfg_attr(not(cuda), allow(dead_code, reason = "other devices make two calls"))]
struct EmbedNormOp<'a> {
    embed: &'a EmbedOp,
    norm: &'a LayerNorm,
}

impl Joint for EmbedNormOp<'_> {
    const NAME: &'static str = EmbedOp::NAME;

    fn x(&self) -> &Tensor {
        self.embed.x()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        self.embed.out()
    }

    fn detail(&self) -> String {
        format!("{}, norm", self.embed.detail())
    }

    #[cfg(cuda)]
    fn is_taken(&self, device: Device) -> bool {
        let is_real = matches!(device, Device::Cuda(_)) && !self.x().is_phantom();
        is_real && super::cuda::EmbedNormKernel::of(self.embed, self.norm).is_ok_and(|kernel| kernel.is_some())
    }

    #[cfg(not(cuda))]
    fn is_taken(&self, _: Device) -> bool {
        false
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        let kernel = super::cuda::EmbedNormKernel::of(self.embed, self.norm)?;
        kernel.ok_or_else(|| crate::Error::call(Self::NAME, "no kernel with a norm takes this call"))?.run()
    }
}
