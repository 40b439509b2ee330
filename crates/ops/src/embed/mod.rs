//! Embedding lookup: `y[t] = Σ tableᵢ[idsᵢ[t]]`, summed in f32 with one rounding to T.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
mod embed_norm;
mod lookup;
#[cfg(metal)]
mod metal;
mod reference;
mod table;

pub(crate) use cases::{cases, cases_of_cuda};
pub use embed_norm::embed_normed;
pub(crate) use lookup::lookup;
pub use table::Table;

use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::{DType, Device, Error, Result, Tensor};

/// Tables that our GPU kernels add at once.
const MAX_TABLES: usize = 3;

/// Looks up every id in its table and adds the rows: token, position and type embeddings in one
/// pass.
///
/// Each pair is a table `[rows, n]` and ids `[t]`; an id beyond its table is an error on the CPU
/// and must not be sent to a GPU.
pub fn embed(pairs: &[(&Tensor, &Tensor)]) -> Result<Tensor> {
    ladder::run(EmbedOp::checked(pairs)?)
}

pub(crate) struct EmbedOp {
    pairs: Vec<(Tensor, Tensor)>,
}

impl EmbedOp {
    /// The op, if its arguments fit together.
    fn checked(pairs: &[(&Tensor, &Tensor)]) -> Result<EmbedOp> {
        let Some((table, ids)) = pairs.first() else { return Err(Error::call("embed", "no tables")) };
        let fits = |(t, i): &(&Tensor, &Tensor)| {
            t.dims().len() == 2
                && t.dims()[1] == table.dims()[1]
                && t.dtype() == table.dtype()
                && i.dims().len() == 1
                && i.dims() == ids.dims()
                && i.dtype() == DType::U32
        };
        if table.dims().len() != 2 || !pairs.iter().all(fits) {
            return Err(Error::call(
                "embed",
                "tables must have one width and dtype, and ids must be u32 of one length",
            ));
        }
        Ok(EmbedOp { pairs: pairs.iter().map(|(t, i)| ((*t).clone(), (*i).clone())).collect() })
    }
}

impl Op for EmbedOp {
    const NAME: &'static str = "embed";

    fn x(&self) -> &Tensor {
        &self.pairs[0].0
    }

    fn out(&self) -> (Vec<usize>, DType) {
        let (table, ids) = &self.pairs[0];
        (vec![ids.dims()[0], table.dims()[1]], table.dtype())
    }

    fn detail(&self) -> String {
        let rows: Vec<_> = self.pairs.iter().map(|(t, _)| t.dims()[0].to_string()).collect();
        format!("{} → {}", rows.join(" + "), self.x().dims()[1])
    }

    fn fused(&self, device: Device) -> Can {
        match device {
            Device::Metal(_) | Device::Cuda(_) if self.pairs.len() > MAX_TABLES => {
                Can::no("our kernel adds at most three tables")
            }
            _ => Can::Yes,
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the gathered rows, in f32, and the sum, in f32.
        let (dims, _) = self.out();
        if rung == Rung::Composed { 4 * 4 * dims.iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, composed);

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        cuda::run(&self.pairs.iter().map(|(table, ids)| (table, ids)).collect::<Vec<_>>(), 1.0)
    }

    #[cfg(metal)]
    fn metal(&self) -> Result<candle_core::Tensor> {
        metal::run(&self.pairs.iter().map(|(table, ids)| (table, ids)).collect::<Vec<_>>(), 1.0)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let pairs = self.pairs.iter().map(|(t, i)| Ok((to(t)?, to(i)?))).collect::<Result<_>>()?;
        Ok(EmbedOp { pairs })
    }
}
