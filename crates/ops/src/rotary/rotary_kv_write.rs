//! Rotates q and k, and writes the KV cache: keys[rowᵢ] = rotated kᵢ, values[rowᵢ] = vᵢ, rounded to
//! T, then to the cache's format.
//!
//! This is everything between a layer's projection and its attention over a KV cache. On a GPU it
//! is one launch; on a CPU, and where doctor has withdrawn that kernel, it becomes separate
//! `rotary` and `kv_write` calls.

use super::Rotary;
use crate::kv_write::{KvTensor, KvWriteOp};
use crate::ladder::{self, Joint, Op};
use crate::{DType, Device, Error, Result, Tensor};

/// Queries, keys and values of a layer `[tokens, heads, size]`, not rotated yet, and the positions
/// of their tokens.
#[derive(Clone, Copy, Debug)]
pub struct Projected<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys, possibly with fewer heads (grouped-query attention).
    pub k: &'a Tensor,
    /// Values.
    pub v: &'a Tensor,
    /// `[tokens]`.
    pub positions: &'a Tensor,
}

impl Rotary {
    /// Rotates queries and keys, writes keys and values to `rows` of `cache`, and returns the
    /// rotated queries.
    pub fn forward_and_write_kv(&self, x: Projected<'_>, cache: &[KvTensor; 2], rows: &Tensor) -> Result<Tensor> {
        let Projected { q, k, v, positions } = x;
        self.check(q, positions)?;
        self.check(k, positions)?;
        if q.dims()[2] != k.dims()[2] || q.dtype() != k.dtype() {
            let what = format!(
                "q and k must agree in head size and dtype: q {:?} in {}, k {:?} in {}",
                q.dims(),
                q.dtype(),
                k.dims(),
                k.dtype()
            );
            return Err(Error::call("rotary", what));
        }
        let kv_write = KvWriteOp::checked(cache, [k, v], rows)?;
        let op = RotaryKvWriteOp { q: q.clone(), positions: positions.clone(), rotary: self.clone(), kv_write };
        if let Some(q) = ladder::whole(&op) {
            return q;
        }
        let k = self.forward(k, positions)?;
        ladder::run_in_place(KvWriteOp::checked(cache, [&k, v], rows)?)?;
        drop(k);
        self.forward(q, positions)
    }
}

#[cfg_attr(not(any(cuda, metal)), allow(dead_code, reason = "on a CPU separate calls do this"))]
struct RotaryKvWriteOp {
    q: Tensor,
    positions: Tensor,
    rotary: Rotary,
    /// Its keys are not rotated yet.
    kv_write: KvWriteOp,
}

#[cfg(any(cuda, metal))]
impl RotaryKvWriteOp {
    fn rotary_queries(&self) -> crate::kv_write::RotaryQueries<'_> {
        let Rotary { cos, sin } = &self.rotary;
        crate::kv_write::RotaryQueries { q: &self.q, positions: &self.positions, cosines: cos, sines: sin }
    }
}

impl Joint for RotaryKvWriteOp {
    const NAME: &'static str = "rotary";

    fn x(&self) -> &Tensor {
        &self.q
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.q.dims().to_vec(), self.q.dtype())
    }

    fn detail(&self) -> String {
        let (rotated, dims) = (2 * self.rotary.half(), self.q.dims());
        format!("{rotated} of {} in {} heads; {}", dims[2], dims[1], self.kv_write.detail())
    }

    fn is_taken(&self, device: Device) -> bool {
        // Two calls cost nothing on a CPU.
        device.is_gpu()
    }

    #[cfg(cuda)]
    fn cuda(&self) -> Result<candle_core::Tensor> {
        crate::kv_write::cuda::rotary_kv_write(&self.kv_write, &self.rotary_queries())
    }

    #[cfg(metal)]
    fn metal(&self) -> Result<candle_core::Tensor> {
        crate::kv_write::metal::rotary_kv_write(&self.kv_write, &self.rotary_queries())
    }
}
