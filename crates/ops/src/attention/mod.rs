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
use crate::ladder::{self, Op, Rung};
use crate::{DType, Error, Result, Segments, Tensor};

/// What the scores are like; q, k and v come beside it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which tokens belong together.
    pub segments: Segments,
    /// What a score is multiplied with before the softmax.
    pub scale: f32,
}

/// Attention over q, k and v `[tokens, heads, size]`; the result has the same shape.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, how: &Attention) -> Result<Tensor> {
    let segments = &how.segments;
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
    ladder::run(AttentionOp { q: q.clone(), k: k.clone(), v: v.clone(), segments: segments.clone(), scale: how.scale })
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

    fn scratch(&self, rung: Rung) -> usize {
        let [tokens, heads, size] = *self.q.dims() else { return 0 };
        let longest = self.segments.iter().map(|range| range.len()).max().unwrap_or(0);
        match rung {
            Rung::Fused => cpu::scratch(longest, size),
            // In f32: the outputs so far and their concatenation; of the longest sequence q, k twice, v and the product; and
            // four stages of its scores.
            _ => 4 * (2 * tokens * heads * size + 5 * longest * heads * size + 4 * heads * longest * longest),
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
