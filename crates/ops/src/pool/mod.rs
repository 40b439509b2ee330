//! Pooling: one vector per sequence from one vector per token        summed and returned in f32
//!
//! - cls: the first token · mean: Σx / n · max: the largest of each column · mean-sqrt-len: Σx / √n
//! - weighted-mean: Σ i·x / Σ i, with i = 1, 2, … the token's position · last-token: the last token
//!
//! The results of several modes are concatenated. All modes skip the prompt tokens that the model's
//! files exclude; weighted-mean still counts their positions, as in sentence-transformers.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::replay::{OpScope, op_scope};
use crate::{DType, Error, Result, Segments, Tensor};
use std::ops::Range;
use std::str::FromStr;

/// How a sequence becomes a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token.
    Cls,
    /// The mean of all tokens.
    Mean,
    /// The largest value of each column.
    Max,
    /// The sum divided by the root of the count.
    MeanSqrtLen,
    /// The mean with weights 1, 2, 3, ….
    WeightedMean,
    /// The last token.
    LastToken,
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(s: &str) -> Result<Pooling> {
        match s {
            "cls" => Ok(Pooling::Cls),
            "mean" => Ok(Pooling::Mean),
            "max" => Ok(Pooling::Max),
            "mean_sqrt_len" => Ok(Pooling::MeanSqrtLen),
            "weighted_mean" => Ok(Pooling::WeightedMean),
            "last_token" => Ok(Pooling::LastToken),
            other => Err(Error::Parse(format!(
                "unknown pooling `{other}`; one of cls, mean, max, mean_sqrt_len, weighted_mean, last_token"
            ))),
        }
    }
}

/// Pools `x` `[tokens, n]` to f32 `[sequences, modes · n]`; skips `skip[i]` tokens at the start of
/// sequence `i`.
pub fn pool(x: &Tensor, segments: &Segments, skip: &[usize], modes: &[Pooling]) -> Result<Tensor> {
    let [tokens, _] = *x.dims() else {
        return Err(Error::call("pool", format!("x {:?} is not [tokens, size]", x.dims())));
    };
    let scope = op_scope();
    let without_fillers = segments.count() - segments.fillers();
    let leaves_some =
        segments.lengths(scope).iter().zip(skip).take(without_fillers).all(|(range, skip)| *skip < range.len());
    if tokens != segments.tokens() || skip.len() != segments.count() || !leaves_some || modes.is_empty() {
        let what = format!(
            "{tokens} rows for {} packed tokens, {} skips for {} sequences (each must leave a token), {} modes",
            segments.tokens(),
            skip.len(),
            segments.count(),
            modes.len()
        );
        return Err(Error::call("pool", what));
    }
    let (skip, modes) = (skip.to_vec(), modes.to_vec());
    ladder::run(PoolOp { x: x.clone(), segments: segments.clone(), scope, skip, modes })
}

pub(crate) struct PoolOp {
    x: Tensor,
    segments: Segments,
    scope: OpScope,
    skip: Vec<usize>,
    modes: Vec<Pooling>,
}

impl PoolOp {
    /// Rows of sequence `i` that count.
    fn rows(&self, i: usize) -> Range<usize> {
        let range = self.segments.lengths(self.scope).range(i);
        range.start + self.skip[i]..range.end
    }

    fn size(&self) -> usize {
        self.x.dims()[1]
    }
}

impl Op for PoolOp {
    const NAME: &'static str = "pool";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.segments.count(), self.modes.len() * self.size()], DType::F32)
    }

    fn detail(&self) -> String {
        format!("{:?} of {}", self.modes, self.size())
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the vectors so far, and the tokens of the longest sequence in f32, twice if
        // they are weighted.
        let longest = self.segments.lengths(self.scope).longest();
        let vectors = self.segments.count() * self.modes.len() * self.size();
        if rung == Rung::Composed { 4 * (vectors + 2 * longest * self.size()) } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(PoolOp {
            x: to(&self.x)?,
            segments: self.segments.clone(),
            scope: self.scope,
            skip: self.skip.clone(),
            modes: self.modes.clone(),
        })
    }
}
