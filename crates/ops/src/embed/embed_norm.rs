//! y = norm(Σ tableᵢ[idsᵢ])        summed and normalised in f32, one rounding to T
//!
//! How an encoder begins. On CUDA it is one launch, of up to 1,024 elements in whole runs of 16 bytes; elsewhere, and where one of both is
//! withdrawn, it is the calls of `embed` and `layer_norm` that it stands for. Those are what a plan tells.

use super::EmbedOp;
use crate::ladder::{self, Joint, Op};
use crate::{DType, Device, LayerNorm, Result, Tensor};

/// The norm of the sum of the rows: see [`super::embed`].
pub fn embed_normed(pairs: &[(&Tensor, &Tensor)], norm: &LayerNorm) -> Result<Tensor> {
    let embed = EmbedOp::checked(pairs)?;
    let (dims, dtype) = embed.out();
    if norm.is_kernel_for(&dims, dtype, embed.x().device())
        && let Some(y) = ladder::whole(&Normed { embed: &embed, norm })
    {
        return y;
    }
    norm.forward(&ladder::run(embed)?)
}

#[cfg_attr(not(cuda), allow(dead_code, reason = "what other devices make of other calls"))]
struct Normed<'a> {
    embed: &'a EmbedOp,
    norm: &'a LayerNorm,
}

impl Joint for Normed<'_> {
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
        let is_there = matches!(device, Device::Cuda(_)) && !self.x().is_phantom();
        is_there && super::cuda::Normed::of(self.embed, self.norm).is_ok_and(|normed| normed.is_some())
    }

    #[cfg(not(cuda))]
    fn is_taken(&self, _: Device) -> bool {
        false
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        let normed = super::cuda::Normed::of(self.embed, self.norm)?;
        normed.ok_or_else(|| crate::Error::call(Self::NAME, "no kernel with a norm"))?.run()
    }
}
