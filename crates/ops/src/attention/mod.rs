//! y = softmax(q · kᵀ · scale) · v, per head and per sequence of a packed batch        scores, exp and sums in f32, one rounding
//!
//! Bidirectional: every token of a sequence sees every token of it and none of another. q, k and v may be views into one
//! fused projection; nothing is padded and nothing is copied to line them up.

mod cases;
mod composed;
mod cpu;
mod reference;

pub(crate) use cases::cases;

use crate::cpu::Isa;
use crate::ladder::{self, Can, Op};
use crate::{DType, Device, Error, Result, Segments, Tensor};

/// Attention over q, k and v `[tokens, heads, size]`; the result has the same shape.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, segments: &Segments, scale: f32) -> Result<Tensor> {
    let alike = |t: &Tensor| t.dims() == q.dims() && t.dtype() == q.dtype();
    if q.dims().len() != 3 || q.dims()[0] != segments.tokens() || !alike(k) || !alike(v) {
        let what = format!(
            "q {:?}, k {:?}, v {:?} in {} for {} packed tokens",
            q.dims(),
            k.dims(),
            v.dims(),
            q.dtype(),
            segments.tokens()
        );
        return Err(Error::call("attention", what));
    }
    ladder::run(AttentionOp { q: q.clone(), k: k.clone(), v: v.clone(), segments: segments.clone(), scale })
}

pub(crate) struct AttentionOp {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    scale: f32,
}

impl Op for AttentionOp {
    const NAME: &'static str = "attention";

    fn x(&self) -> &Tensor {
        &self.q
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.q.dims().to_vec(), self.q.dtype())
    }

    fn detail(&self) -> String {
        format!("{} heads of {}, packed", self.q.dims()[1], self.q.dims()[2])
    }

    fn fused(&self, device: Device) -> Can {
        match device {
            Device::Cpu => Can::Yes,
            _ => Can::no("no kernel of ours yet"),
        }
    }

    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self, isa)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        composed::run(self)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(AttentionOp {
            q: to(&self.q)?,
            k: to(&self.k)?,
            v: to(&self.v)?,
            segments: self.segments.clone(),
            scale: self.scale,
        })
    }
}
