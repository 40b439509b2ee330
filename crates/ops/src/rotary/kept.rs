//! q turned; keys[rowᵢ] = k turned, values[rowᵢ] = v        rounded to T, and then to the cache's format
//!
//! All that happens between a layer's projection and its attention, where a cache keeps keys and values. On a GPU it is one launch;
//! elsewhere, and where that is withdrawn, it is the calls of `rotary` and `store` that it stands for.

use super::Rotary;
use crate::cpu::Isa;
use crate::ladder::{self, Can, Op};
use crate::store::{StoreOp, Vectors};
use crate::{DType, Device, Error, Result, Tensor};

/// Queries, keys and values of a layer `[tokens, heads, size]`, before they are turned, and the positions of their tokens.
#[derive(Clone, Copy, Debug)]
pub struct Projected<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys, of fewer heads perhaps.
    pub k: &'a Tensor,
    /// Values.
    pub v: &'a Tensor,
    /// `[tokens]`.
    pub positions: &'a Tensor,
}

impl Rotary {
    /// Turns queries and keys, writes keys and values to `rows` of `cache`, and gives the queries.
    pub fn forward_and_store(&self, x: Projected<'_>, cache: &[Vectors; 2], rows: &Tensor) -> Result<Tensor> {
        let Projected { q, k, v, positions } = x;
        self.check(q, positions)?;
        self.check(k, positions)?;
        if q.dims()[2] != k.dims()[2] || q.dtype() != k.dtype() {
            let what = format!("q {:?} in {}, k {:?} in {}", q.dims(), q.dtype(), k.dims(), k.dtype());
            return Err(Error::call("rotary", what));
        }
        let store = StoreOp::checked(cache, [k, v], rows)?;
        let op = KeptOp { q: q.clone(), positions: positions.clone(), rotary: self.clone(), store };
        if ladder::is_fused(&op) {
            return ladder::run(op);
        }
        let k = self.forward(k, positions)?;
        ladder::run_in_place(StoreOp::checked(cache, [&k, v], rows)?)?;
        drop(k);
        self.forward(q, positions)
    }
}

struct KeptOp {
    q: Tensor,
    positions: Tensor,
    rotary: Rotary,
    /// Of keys that are not turned yet.
    store: StoreOp,
}

#[cfg(any(cuda, metal))]
impl KeptOp {
    fn turn(&self) -> crate::store::Turn<'_> {
        let Rotary { cos, sin } = &self.rotary;
        crate::store::Turn { q: &self.q, positions: &self.positions, cosines: cos, sines: sin }
    }
}

impl Op for KeptOp {
    const NAME: &'static str = "rotary";

    fn x(&self) -> &Tensor {
        &self.q
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.q.dims().to_vec(), self.q.dtype())
    }

    fn detail(&self) -> String {
        let (turned, dims) = (2 * self.rotary.half(), self.q.dims());
        format!("{turned} of {} in {} heads; {}", dims[2], dims[1], self.store.detail())
    }

    fn fused(&self, device: Device) -> Can {
        match device {
            Device::Cuda(_) | Device::Metal(_) => Can::Yes,
            // A call costs nothing there.
            Device::Cpu => Can::no("made of other calls"),
        }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no("made of other calls")
    }

    fn movable(&self) -> Can {
        self.store.movable()
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        crate::store::cuda::turned(&self.store, &self.turn())
    }

    #[cfg(metal)]
    fn metal(&self) -> Result<candle_core::Tensor> {
        crate::store::metal::turned(&self.store, &self.turn())
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "made of other calls"))
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(KeptOp {
            q: to(&self.q)?,
            positions: to(&self.positions)?,
            rotary: self.rotary.map(to)?,
            store: self.store.map(to)?,
        })
    }
}
