//! Sampling: `y[row]` is the next token, sampled from the logits `x[row]`. Temperature 0 is greedy:
//! the largest logit, and of equal logits the lowest id. Otherwise x / temperature is cut by
//! `top_k`, `top_p` and `min_p`, in this order, and y is the token at the quantile u of the
//! remaining probability, best first. y is u32::MAX if a logit is not finite. Weights are in f32,
//! their sums in f64 on the CPU and in f32 elsewhere.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
mod logit_scans;
#[cfg(metal)]
mod metal;
mod rank;
mod reference;

pub(crate) use cases::cases;
pub use cpu::sample_row;
pub use logit_scans::{largest, not_finite, sum_exp};
pub use rank::Ranked;

use crate::cpu::Isa;
use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::{DType, Device, Error, Ladder, Result, Tensor};
use std::sync::Arc;

/// How a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy sampling.
    pub temperature: f32,
    /// Keeps this many of the largest logits, at least one; of equals the lowest ids.
    pub top_k: Option<u32>,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least this share of what
    /// top-k leaves; 0 keeps one, 1 all.
    pub top_p: f32,
    /// Keeps tokens with at least this share of the largest probability.
    pub min_p: f32,
    /// Uniform random number in [0, 1): selects the token at this quantile of the remaining
    /// probability, best first.
    pub u: f64,
}

impl SamplingParams {
    /// Greedy: the largest logit.
    pub const GREEDY: SamplingParams = SamplingParams { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0, u: 0.0 };
}

/// Samples a token for each row of `logits` `[rows, vocabulary]`: `[rows]`, u32::MAX if a logit is
/// not finite.
pub fn sample(logits: &Tensor, params: &[SamplingParams]) -> Result<Tensor> {
    if params.iter().any(|params| params.top_k == Some(0)) {
        return Err(Error::call("sample", "top_k must be at least 1"));
    }
    match *logits.dims() {
        [rows, vocabulary] if rows == params.len() && vocabulary > 0 && u32::try_from(vocabulary).is_ok() => {
            ladder::run(SampleOp { x: logits.clone(), params: params.into() })
        }
        ref other => Err(Error::call("sample", format!("logits {other:?} for {} sampling parameters", params.len()))),
    }
}

/// Whether our kernel can sample on the device of `logits`, so that they need not be copied to the
/// host. On the CPU there is nothing to gain: see [`sample_row`].
pub fn can_sample(logits: &Tensor) -> bool {
    let (dims, dtype, device) = (logits.dims(), logits.dtype(), logits.device());
    if !device.is_gpu() {
        return false;
    }
    // A separate ladder with the same policy: nothing runs, so nothing is counted.
    let ladder = Ladder::new(ladder::current().policy.clone());
    let params = vec![SamplingParams::GREEDY; dims.first().copied().unwrap_or(0)];
    let (_, steps) = ladder.trace(|| sample(&Tensor::phantom(dims, dtype, device), &params).map(drop));
    matches!(&*steps, [step] if step.rung == Ok(Rung::Fused))
}

pub(crate) struct SampleOp {
    x: Tensor,
    params: Arc<[SamplingParams]>,
}

#[cfg(any(cuda, metal))]
impl SampleOp {
    /// The kernels' `SamplingParams`, as words.
    fn param_words(&self) -> Vec<u32> {
        let words = self.params.iter().map(|params| {
            // A device may flush subnormal numbers to 0, which would mean greedy.
            let temperature = if params.temperature > 0.0 { params.temperature.max(f32::MIN_POSITIVE) } else { 0.0 };
            let [temperature, top_p, min_p, u] =
                [temperature, params.top_p, params.min_p, params.u as f32].map(f32::to_bits);
            [temperature, params.top_k.unwrap_or(u32::MAX), top_p, min_p, u]
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
        (vec![self.params.len()], DType::U32)
    }

    fn detail(&self) -> String {
        format!("of {}", self.x.dims()[1])
    }

    fn composable(&self, device: Device) -> Can {
        match device {
            Device::Cpu => Can::Yes,
            _ => Can::no("Candle cannot sort a row as wide as a vocabulary there"),
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let [rows, vocabulary] = [self.x.dims()[0], self.x.dims()[1]];
        match rung {
            // Finite logits, sorted ones and their ids, and a mask.
            Rung::Composed => rows.saturating_mul(vocabulary).saturating_mul(3 * 4 + 1),
            // A row in f32 and its rank keys.
            Rung::Fused if self.x.device() == Device::Cpu => vocabulary.saturating_mul(4 + 8),
            // For each part of 4096: its best, the best of its 128 groups, and a sum.
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
        Ok(SampleOp { x: to(&self.x)?, params: self.params.clone() })
    }
}
