//! q turned; keys[rowᵢ] = k turned, values[rowᵢ] = v        rounded to T, and then to the cache's format
//!
//! All that happens between a layer's projection and its attention, where a cache keeps keys and values. On a GPU it is one launch;
//! elsewhere, and where that is withdrawn, it is the calls of `rotary` and `store` that it stands for.

use super::Rotary;
use crate::kv_write::{KvTensor, KvWriteOp};
use crate::ladder::{self, Joint, Op};
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
    pub fn forward_and_write_kv(&self, x: Projected<'_>, cache: &[KvTensor; 2], rows: &Tensor) -> Result<Tensor> {
        let Projected { q, k, v, positions } = x;
        self.check(q, positions)?;
        self.check(k, positions)?;
        if q.dims()[2] != k.dims()[2] || q.dtype() != k.dtype() {
            let what = format!("q {:?} in {}, k {:?} in {}", q.dims(), q.dtype(), k.dims(), k.dtype());
            return Err(Error::call("rotary", what));
        }
        let store = KvWriteOp::checked(cache, [k, v], rows)?;
        let op = Kept { q: q.clone(), positions: positions.clone(), rotary: self.clone(), store };
        if let Some(q) = ladder::whole(&op) {
            return q;
        }
        let k = self.forward(k, positions)?;
        ladder::run_in_place(KvWriteOp::checked(cache, [&k, v], rows)?)?;
        drop(k);
        self.forward(q, positions)
    }
}

#[cfg_attr(not(any(cuda, metal)), allow(dead_code, reason = "what a CPU makes of other calls"))]
struct Kept {
    q: Tensor,
    positions: Tensor,
    rotary: Rotary,
    /// Of keys that are not turned yet.
    store: KvWriteOp,
}

#[cfg(any(cuda, metal))]
impl Kept {
    fn turn(&self) -> crate::kv_write::Turn<'_> {
        let Rotary { cos, sin } = &self.rotary;
        crate::kv_write::Turn { q: &self.q, positions: &self.positions, cosines: cos, sines: sin }
    }
}

impl Joint for Kept {
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

    fn is_taken(&self, device: Device) -> bool {
        // A call costs nothing on a CPU.
        device.is_gpu()
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        crate::kv_write::cuda::turned(&self.store, &self.turn())
    }

    #[cfg(metal)]
    fn metal(&self) -> Result<candle_core::Tensor> {
        crate::kv_write::metal::turned(&self.store, &self.turn())
    }
}
