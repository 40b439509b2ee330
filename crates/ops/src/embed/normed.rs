//! y = norm(Σ tableᵢ[idsᵢ])        summed and normalised in f32, one rounding to T
//!
//! How an encoder begins. On CUDA it is one launch; elsewhere, and where that is withdrawn, it is the calls of `embed` and `layer_norm`
//! that it stands for.

use super::{EmbedOp, MOST_TABLES};
use crate::cpu::Isa;
use crate::ladder::{self, Can, Op, Rung};
use crate::{DType, Device, Error, LayerNorm, Result, Tensor};

/// The longest row that a warp has in registers.
const LONGEST: usize = 1024;

/// The norm of the sum of the rows: see [`super::embed`].
pub fn embed_normed(pairs: &[(&Tensor, &Tensor)], norm: &LayerNorm) -> Result<Tensor> {
    let op = NormedOp { embed: EmbedOp::checked(pairs)?, norm: norm.clone() };
    let (dims, dtype) = op.out();
    if norm.is_of(&dims, dtype) && ladder::is_fused(&op) {
        return ladder::run(op);
    }
    norm.forward(&ladder::run(op.embed)?)
}

struct NormedOp {
    embed: EmbedOp,
    norm: LayerNorm,
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
        let is_short = self.x().dims()[1] <= LONGEST && self.embed.pairs.len() <= MOST_TABLES;
        match device {
            Device::Cuda(_) if is_short => Can::Yes,
            _ => Can::no("made of other calls"),
        }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no("made of other calls")
    }

    fn scratch(&self, _: Rung) -> usize {
        // Rows that are not whole runs of 16 bytes take two launches, and there is the sum between them.
        let (dims, dtype) = self.out();
        dims.iter().product::<usize>() * dtype.size()
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        let pairs: Vec<_> = self.embed.pairs.iter().map(|(table, ids)| (table, ids)).collect();
        if let Some(y) = super::cuda::normed(&pairs, &self.norm)? {
            return Ok(y);
        }
        let sum = Tensor::made(self.embed.cuda()?, self.x().dtype(), self.x().device());
        self.norm.op(&sum, None)?.cuda()
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(NormedOp { embed: self.embed.map(to)?, norm: self.norm.map(to)? })
    }
}
