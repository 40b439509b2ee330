//! y = norm(Σ tableᵢ[idsᵢ])        summed and normalised in f32, one rounding to T
//!
//! How an encoder begins. On CUDA it is one launch, of up to 1,024 elements in whole runs of 16 bytes; elsewhere, and where one of both is
//! withdrawn, it is the calls of `embed` and `layer_norm` that it stands for. Those are what a plan tells.

use super::EmbedOp;
use crate::cpu::Isa;
use crate::ladder::{self, Can, Op};
use crate::{DType, Device, Error, LayerNorm, Result, Tensor};

/// The norm of the sum of the rows: see [`super::embed`].
pub fn embed_normed(pairs: &[(&Tensor, &Tensor)], norm: &LayerNorm) -> Result<Tensor> {
    let op = NormedOp { embed: EmbedOp::checked(pairs)?, norm: norm.clone() };
    let (dims, dtype) = op.out();
    if norm.is_kernel_for(&dims, dtype, op.x().device()) && ladder::is_fused(&op) {
        return ladder::run(op);
    }
    norm.forward(&ladder::run(op.embed)?)
}

struct NormedOp {
    embed: EmbedOp,
    norm: LayerNorm,
}

impl NormedOp {
    #[cfg(cuda)]
    fn is_taken(&self) -> bool {
        !self.x().is_phantom() && super::cuda::Normed::of(&self.embed, &self.norm).is_ok_and(|n| n.is_some())
    }

    #[cfg(not(cuda))]
    fn is_taken(&self) -> bool {
        false
    }
}

impl Op for NormedOp {
    const NAME: &'static str = "embed";

    fn x(&self) -> &Tensor {
        self.embed.x()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        self.embed.out()
    }

    fn detail(&self) -> String {
        format!("{}, norm", self.embed.detail())
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
        match super::cuda::Normed::of(&self.embed, &self.norm)? {
            Some(normed) => normed.run(),
            None => Err(Error::call(Self::NAME, "no kernel with a norm for this call")),
        }
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(NormedOp { embed: self.embed.map(to)?, norm: self.norm.map(to)? })
    }
}
