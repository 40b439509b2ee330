//! Log probabilities of tokens.
//!
//! By default they are those of the model's own distribution: log softmax of its logits before
//! bias, penalties, temperature and truncation, as OpenAI and vLLM report them. They do not depend
//! on the sampling parameters. On request they are those of the distribution that tokens are drawn
//! from, as llama.cpp reports them with `post_sampling_probs`.

use sconce_ops::SamplingParams;
use sconce_ops::sample::{Ranked, largest, sum_exp};

/// The log probability of a token, and the likeliest tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the sampled token.
    pub chosen: f32,
    /// The likeliest tokens and their log probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// The log softmax of a row, before a token is sampled.
pub(crate) struct RowLogprobs {
    /// log Σ exp of the logits.
    normalizer: f64,
    top: Vec<(u32, f32)>,
}

impl RowLogprobs {
    /// From finite logits.
    pub(crate) fn of(logits: &[f32], top: u32) -> RowLogprobs {
        let normalizer = normalizer(logits);
        let mut ranked = Ranked::new(logits, top as usize);
        let top = (0..top as usize).map_while(|i| ranked.get(i));
        RowLogprobs { normalizer, top: top.map(|(logit, id)| (id, (f64::from(logit) - normalizer) as f32)).collect() }
    }

    /// Adds the logit of the sampled token.
    pub(crate) fn with(self, logit: f32) -> Logprobs {
        Logprobs { chosen: (f64::from(logit) - self.normalizer) as f32, top: self.top }
    }
}

/// The log probability of `token`, and those of the `top` likeliest, in the distribution that
/// `params` leave of logits without NaN and +∞. Those without probability are left out.
pub(crate) fn sampled_logprobs(logits: &[f32], params: &SamplingParams, token: u32, top: u32) -> Logprobs {
    if params.temperature == 0.0 {
        return Logprobs { chosen: 0.0, top: (0..top.min(1)).map(|_| (token, 0.0)).collect() };
    }
    let most = params.top_k.map_or(logits.len(), |k| (k as usize).min(logits.len()));
    let has_cuts = most < logits.len() || params.top_p < 1.0 || params.min_p > 0.0;
    let mut ranked = Ranked::new(logits, if has_cuts { most.min(64) } else { top as usize });
    let best = ranked.get(0).map_or(0.0, |(logit, _)| logit);
    let weight = |logit: f32| (f64::from(logit - best) / f64::from(params.temperature)).exp();
    let mut total = match most < logits.len() {
        true => (0..most).map_while(|i| ranked.get(i)).map(|(logit, _)| weight(logit)).sum(),
        false => sum_exp(logits, best, params.temperature),
    };
    let mut kept = if has_cuts { 0 } else { most };
    if has_cuts {
        let enough = total * f64::from(params.top_p);
        let mut sum = 0.0;
        while let Some((logit, _)) = ranked.get(kept).filter(|_| kept < most) {
            let weight = weight(logit);
            let is_cut = params.top_p < 1.0 && sum >= enough || weight < f64::from(params.min_p);
            if kept > 0 && (weight == 0.0 || is_cut) {
                break;
            }
            sum += weight;
            kept += 1;
        }
        total = sum;
    }
    let logprob = |logit: f32| (weight(logit) / total).ln() as f32;
    let likeliest = (0..kept.min(top as usize)).map_while(|i| ranked.get(i));
    let top = likeliest.map(|(logit, id)| (id, logprob(logit))).filter(|(_, logprob)| logprob.is_finite()).collect();
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit)).max(f32::MIN);
    Logprobs { chosen, top }
}

/// Turns finite logits into log probabilities.
pub(crate) fn log_softmax(logits: &mut [f32]) {
    let normalizer = normalizer(logits);
    logits.iter_mut().for_each(|l| *l = (f64::from(*l) - normalizer) as f32);
}

fn normalizer(logits: &[f32]) -> f64 {
    let best = largest(logits);
    f64::from(best) + sum_exp(logits, best, 1.0).ln()
}
