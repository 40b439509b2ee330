//! cache[toᵢ] = cache[fromᵢ], bit by bit, one row after another: copy-on-write of KV cache pages.

use super::{KvTensor, check_rows};
use crate::cpu::Isa;
use crate::cpu::rows::Reading;
use crate::ladder::{Can, Op, Rung};
use crate::{DType, Device, Error, Result, Tensor};
use candle_core::{CpuStorage, InplaceOp1, Layout};

/// Copies rows within one tensor of a KV cache.
pub(super) struct CopyOp {
    pub(super) cache: Tensor,
    pub(super) from: Tensor,
    pub(super) to: Tensor,
}

impl Op for CopyOp {
    const NAME: &'static str = "kv_write";

    fn x(&self) -> &Tensor {
        &self.cache
    }

    fn detail(&self) -> String {
        format!("{} rows of {:?}, copied", self.from.dims()[0], &self.cache.dims()[1..])
    }

    fn composable(&self, device: Device) -> Can {
        super::composed::can_scatter(self.cache.dtype(), device)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the rows, and a row index per element.
        let n = self.from.dims()[0] * self.cache.dims()[1..].iter().product::<usize>();
        if rung == Rung::Composed { n * (self.cache.dtype().size() + 4) } else { 0 }
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        let (from, to) = (Reading::of(&self.from)?, Reading::of(&self.to)?);
        let (from, to) = (from.slice::<u32>()?, to.slice::<u32>()?);
        check_rows(from, &self.cache)?;
        check_rows(to, &self.cache)?;
        let width = self.cache.dims()[1..].iter().product();
        let cache = self.cache.candle()?;
        cache.inplace_op1(&Copy { from, to, width })?;
        Ok(cache.clone())
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        super::cuda::copy(self)
    }

    #[cfg(metal)]
    fn metal(&self) -> Result<candle_core::Tensor> {
        super::metal::copy(self)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        let cache = self.cache.candle()?;
        let rows = cache.index_select(self.from.candle()?, 0)?;
        super::composed::scatter(cache, &rows, self.to.candle()?)
    }

    fn movable(&self) -> Can {
        super::unmovable()
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(CopyOp { cache: to(&self.cache)?, from: to(&self.from)?, to: to(&self.to)? })
    }
}

/// The ops that copy rows of `cache`, one per tensor.
pub(super) fn ops<'a>(
    cache: &'a KvTensor,
    from: &'a Tensor,
    to: &'a Tensor,
) -> Result<impl Iterator<Item = CopyOp> + 'a> {
    if from.dims().len() != 1 || from.dims() != to.dims() || [from, to].iter().any(|rows| rows.dtype() != DType::U32) {
        return Err(Error::call(
            "kv_write",
            format!(
                "source and target rows must be u32 vectors of one length, not {:?} and {:?}",
                from.dims(),
                to.dims()
            ),
        ));
    }
    Ok(cache.tensors().map(|cache| CopyOp { cache: cache.clone(), from: from.clone(), to: to.clone() }))
}

struct Copy<'a> {
    from: &'a [u32],
    to: &'a [u32],
    width: usize,
}

impl Copy<'_> {
    fn copy_rows<T: std::marker::Copy>(&self, cache: &mut [T]) {
        for (from, to) in self.from.iter().zip(self.to) {
            let from = *from as usize * self.width;
            cache.copy_within(from..from + self.width, *to as usize * self.width);
        }
    }
}

impl InplaceOp1 for Copy<'_> {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        if !layout.is_contiguous() || layout.start_offset() != 0 {
            candle_core::bail!("kv_write: cannot copy rows within a strided view");
        }
        match cache {
            CpuStorage::F32(cache) => self.copy_rows(cache),
            CpuStorage::BF16(cache) => self.copy_rows(cache),
            CpuStorage::F16(cache) => self.copy_rows(cache),
            CpuStorage::U8(cache) => self.copy_rows(cache),
            _ => candle_core::bail!("kv_write: the KV cache must be floats or Q8 blocks"),
        }
        Ok(())
    }
}
