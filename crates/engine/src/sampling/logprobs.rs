//! Log probabilities of tokens.
//!
//! They are those of the model's own distribution: log softmax of its logits before bias,
//! penalties, temperature and truncation, as OpenAI and vLLM report them. They do not depend on the
//! sampling parameters.

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

/// Turns finite logits into log probabilities.
pub(crate) fn log_softmax(logits: &mut [f32]) {
    let normalizer = normalizer(logits);
    logits.iter_mut().for_each(|l| *l = (f64::from(*l) - normalizer) as f32);
}

fn normalizer(logits: &[f32]) -> f64 {
    let best = largest(logits);
    f64::from(best) + sum_exp(logits, best, 1.0).ln()
}
