//! y[row] = the next token by the logits x[row]: temperature 0 takes the largest, the lowest id of equals. Else it is the token at
//! u of the whole of what is left, best first, of x / temperature after `top_k`, `top_p` and `min_p`, in this order.
//! u32::MAX where a logit is no finite number.        weights in f32, their sums in f64 on the CPU and in f32 elsewhere

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
mod maths;
#[cfg(metal)]
mod metal;
mod rank;
mod reference;

pub(crate) use cases::cases;
pub use cpu::sample_row;
pub use maths::{largest, not_finite, sum_exp};
pub use rank::Ranked;

use crate::cpu::Isa;
use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::{DType, Device, Error, Ladder, Result, Tensor};
use std::sync::Arc;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the largest.
    pub temperature: f32,
    /// Keeps the so many largest, at least one: the lowest ids of equals.
    pub top_k: Option<u32>,
    /// Keeps the fewest that have this much of the probability of those; 0 keeps one, 1 all.
    pub top_p: f32,
    /// Keeps those that have this much of the probability of the largest.
    pub min_p: f32,
    /// Where among the rest, in [0, 1): best first, each has as much room as it has of the probability.
    pub u: f64,
}

impl SamplingParams {
    /// The largest.
    pub const BEST: SamplingParams = SamplingParams { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0, u: 0.0 };
}

/// A token for each row of `logits` `[rows, vocabulary]`: `[rows]`, u32::MAX where a logit is not finite.
pub fn sample(logits: &Tensor, how: &[SamplingParams]) -> Result<Tensor> {
    if how.iter().any(|how| how.top_k == Some(0)) {
        return Err(Error::call("sample", "one of no tokens at all"));
    }
    match *logits.dims() {
        [rows, vocabulary] if rows == how.len() && vocabulary > 0 && u32::try_from(vocabulary).is_ok() => {
            ladder::run(SampleOp { x: logits.clone(), how: how.into() })
        }
        ref other => Err(Error::call("sample", format!("logits {other:?} for {} tokens", how.len()))),
    }
}

/// Whether our kernel chooses where `logits` are, so that they need not be read. On the CPU there is nothing to gain: see [`pick`].
pub fn can_sample(logits: &Tensor) -> bool {
    let (dims, dtype, device) = (logits.dims(), logits.dtype(), logits.device());
    if !device.is_gpu() {
        return false;
    }
    // A ladder apart, with the same rules: nothing is chosen, so nothing is booked or counted.
    let ladder = Ladder::new(ladder::current().policy.clone());
    let how = vec![SamplingParams::BEST; dims.first().copied().unwrap_or(0)];
    let (_, steps) = ladder.trace(|| sample(&Tensor::phantom(dims, dtype, device), &how).map(drop));
    matches!(&*steps, [step] if step.rung == Ok(Rung::Fused))
}

pub(crate) struct SampleOp {
    x: Tensor,
    how: Arc<[SamplingParams]>,
}

#[cfg(any(cuda, metal))]
impl SampleOp {
    /// As `SamplingParams` in the kernels, word by word.
    fn words(&self) -> Vec<u32> {
        let words = self.how.iter().map(|how| {
            // A device may take what is below the normal numbers for 0, which would be another order.
            let temperature = if how.temperature > 0.0 { how.temperature.max(f32::MIN_POSITIVE) } else { 0.0 };
            let [temperature, top_p, min_p, u] = [temperature, how.top_p, how.min_p, how.u as f32].map(f32::to_bits);
            [temperature, how.top_k.unwrap_or(u32::MAX), top_p, min_p, u]
        });
        words.flatten().collect()
    }
}

impl Op for SampleOp {
    const NAME: &'static str = "sample";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.how.len()], DType::U32)
    }

    fn detail(&self) -> String {
        format!("of {}", self.x.dims()[1])
    }

    fn composable(&self, device: Device) -> Can {
        match device {
            Device::Cpu => Can::Yes,
            _ => Can::no("Candle sorts no row as wide as a vocabulary there"),
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let [rows, vocabulary] = [self.x.dims()[0], self.x.dims()[1]];
        match rung {
            // Tame, in order and their ids, and a mask.
            Rung::Composed => rows.saturating_mul(vocabulary).saturating_mul(3 * 4 + 1),
            // A row in f32 and its places.
            Rung::Fused if self.x.device() == Device::Cpu => vocabulary.saturating_mul(4 + 8),
            // Of every part of 4096 its best, those of its 128 groups, and a sum.
            Rung::Fused if matches!(self.x.device(), Device::Cuda(_)) => {
                rows.saturating_mul(vocabulary.div_ceil(4096)).saturating_mul(8 + 128 * 8 + 4)
            }
            _ => 0,
        }
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self)
    }

    own_kernels!(cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(SampleOp { x: to(&self.x)?, how: self.how.clone() })
    }
}
