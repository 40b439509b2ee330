//! Sampling: from logits to the next token. Pure: the same logits, text and parameters give the
//! same token, alone or in any batch.
//!
//! The steps, each on the logits l that the one before it left:
//! 1. `logit_bias` is added.
//! 2. The repetition penalty r applies to tokens of prompt and answer: l / r if l > 0, else l · r
//!    (CTRL, arXiv 1909.05858, with the usual treatment of negative logits). Then the frequency and
//!    presence penalties apply to tokens of the answer only, as in OpenAI's API: l − frequency ·
//!    count − presence · [count > 0].
//! 3. Tokens that a constraint forbids are masked.
//! 4. With temperature 0, the largest logit is taken; of equal ones, the lowest id. Otherwise l is
//!    divided by the temperature.
//! 5. `top_k` keeps the k largest logits.
//! 6. `top_p` keeps the fewest of these whose probabilities sum to p of their total.
//! 7. `min_p` keeps the remaining tokens with at least min_p times the highest probability.
//! 8. A token is drawn from the rest by its probability.
//!
//! Others differ as follows. Transformers keeps all tokens equal to the k-th, so `top_k = 1` may
//! keep two; we keep exactly k, the lowest ids of equals, as greedy decoding does. vLLM applies
//! `min_p` before `top_k` and `top_p`; we follow transformers and apply it after them. The order
//! changes only the result of `top_p`, whose p is a fraction of what is left. llama.cpp applies
//! temperature last, and by default penalizes only the last 64 tokens; we penalize the whole text
//! by default. Its frequency and presence penalties also count the prompt; OpenAI's, vLLM's and
//! ours do not.

mod beams;
mod logprobs;
mod params;
mod penalties;
mod random;
mod search;

pub use beams::EarlyStopping;
pub(crate) use beams::{BeamOptions, Beams, Continued, Hypothesis};
pub use logprobs::Logprobs;
pub(crate) use logprobs::log_softmax;
pub use params::GenerationParams;
pub use search::{BeamSearch, Search};

use penalties::TokenCounts;
use sconce_ops::SamplingParams;
use sconce_ops::sample::{not_finite, sample_row};
use std::fmt;
use std::sync::Arc;

/// Why sampling failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The model returned no logits.
    Empty,
    /// The model returned a logit that is not finite.
    NotFinite {
        /// The token.
        token: u32,
        /// Its logit.
        logit: f32,
    },
    /// A constraint forbids every token.
    NothingAllowed,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Empty => write!(f, "the model returned no logits"),
            Failure::NotFinite { token, logit } => write!(f, "the logit of token {token} is {logit}"),
            Failure::NothingAllowed => write!(f, "the constraint allows no token here; check the grammar or schema"),
        }
    }
}

impl std::error::Error for Failure {}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// Its id.
    pub token: u32,
    /// Log probabilities of this token and others, if requested.
    pub logprobs: Option<Logprobs>,
}

/// The log probability of a token and those of the `top` likeliest, from the logits at the position
/// before it.
pub(crate) fn logprobs_of(logits: &[f32], token: u32, top: u32) -> Result<Logprobs, Failure> {
    if let Some(token) = not_finite(logits) {
        return Err(Failure::NotFinite { token: token as u32, logit: logits[token] });
    }
    let logit = *logits.get(token as usize).ok_or(Failure::Empty)?;
    Ok(logprobs::RowLogprobs::of(logits, top).with(logit))
}

/// A sequence so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// Prompt and answer.
    pub(crate) tokens: &'a [u32],
    /// Length of the prompt.
    pub(crate) prompt: usize,
}

/// The sampler of one sequence.
///
/// It counts the tokens of the text, and the counts follow from the text alone: a new sampler with
/// the same text samples the same tokens.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    params: Arc<GenerationParams>,
    /// Index of this answer among the `n`.
    index: u32,
    counts: TokenCounts,
}

impl Sampler {
    /// A sampler for answer `index` of a prompt. The parameters must have passed
    /// [`GenerationParams::check`].
    pub(crate) fn new(params: Arc<GenerationParams>, index: u32) -> Sampler {
        Sampler { params, index, counts: TokenCounts::default() }
    }

    /// Samples the next token of `text`. Bit i mod 32 of word i / 32 of `allowed` says whether a
    /// constraint allows token i; missing words allow none. Overwrites `logits`.
    pub(crate) fn next(
        &mut self,
        logits: &mut [f32],
        text: Text<'_>,
        allowed: Option<&[u32]>,
    ) -> Result<Choice, Failure> {
        let params = Arc::clone(&self.params);
        if let Some(token) = not_finite(logits) {
            return Err(Failure::NotFinite { token: token as u32, logit: logits[token] });
        }
        if logits.is_empty() {
            return Err(Failure::Empty);
        }
        // Logprobs are those of the model's own logits, before any change.
        let row_logprobs = params.logprobs.map(|top| logprobs::RowLogprobs::of(logits, top));
        let mut before = Vec::new();
        self.apply_bias_and_penalties(logits, text, |id, logit| {
            if row_logprobs.is_some() {
                before.push((id, logit));
            }
        });
        if let Some(allowed) = allowed {
            apply_mask(logits, allowed);
        }
        let token = sample_row(logits, &self.sampling_params(text)).ok_or(Failure::NothingAllowed)?;
        let logprobs = row_logprobs.map(|row_logprobs| {
            // The first recorded change of a logit holds its original value.
            let was = before.iter().find(|(id, _)| *id == token).map_or(logits[token as usize], |(_, logit)| *logit);
            row_logprobs.with(was)
        });
        Ok(Choice { token, logprobs })
    }

    /// The choice of a token that is not sampled but given.
    pub(crate) fn given(&self, logits: &[f32], token: u32) -> Result<Choice, Failure> {
        let logprobs = self.params.logprobs.map(|top| logprobs_of(logits, token, top)).transpose()?;
        Ok(Choice { token, logprobs })
    }

    /// The parameters for sampling on the device, if the sampled token depends on the logits alone
    /// and no logprobs are requested.
    pub(crate) fn device_params(&self, text: Text<'_>) -> Option<SamplingParams> {
        let GenerationParams { logit_bias, logprobs, .. } = &*self.params;
        let is_plain = logit_bias.is_empty() && logprobs.is_none() && !self.params.penalizes();
        is_plain.then(|| self.sampling_params(text))
    }

    /// The parameters of steps 4 to 8.
    fn sampling_params(&self, text: Text<'_>) -> SamplingParams {
        let GenerationParams { temperature, top_k, top_p, min_p, seed, .. } = *self.params;
        let u = random::uniform(seed, self.index, text.tokens.len() as u64);
        SamplingParams { temperature, top_k, top_p, min_p, u }
    }

    /// Applies bias and penalties. `before` receives the old value of every logit that changes.
    fn apply_bias_and_penalties(&mut self, logits: &mut [f32], text: Text<'_>, mut before: impl FnMut(u32, f32)) {
        let params = &self.params;
        for (id, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                before(*id, *logit);
                *logit += bias;
            }
        }
        if params.penalizes() {
            self.counts.update(text, params.penalty_window);
            self.counts.penalize(logits, params, before);
        }
    }
}

/// Masks the tokens that are not allowed.
fn apply_mask(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            _ => {
                for (i, logit) in chunk.iter_mut().enumerate() {
                    if word >> i & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
