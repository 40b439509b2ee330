//! How likely tokens were.
//!
//! Of the model's own distribution, log softmax of its logits before bias, penalties, temperature and cuts, as OpenAI and vLLM
//! give it: what was likely to the model does not depend on how someone chooses from it.

use sconce_ops::sample::{Ranked, largest, sum_exp};

/// How likely a token was to the model, and which were most likely.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens and how likely they were, best first.
    pub top: Vec<(u32, f32)>,
}

/// What there is to say before a token is chosen.
pub(crate) struct Raw {
    /// log Σ exp of the logits.
    normalizer: f64,
    top: Vec<(u32, f32)>,
}

impl Raw {
    /// Of finite logits.
    pub(crate) fn of(logits: &[f32], top: u32) -> Raw {
        let normalizer = normalizer(logits);
        let mut ranked = Ranked::new(logits, top as usize);
        let top = (0..top as usize).map_while(|i| ranked.get(i));
        Raw { normalizer, top: top.map(|(logit, id)| (id, (f64::from(logit) - normalizer) as f32)).collect() }
    }

    /// With the logit of the chosen token.
    pub(crate) fn with(self, logit: f32) -> Logprobs {
        Logprobs { chosen: (f64::from(logit) - self.normalizer) as f32, top: self.top }
    }
}

/// Turns finite logits into the logarithms of their probabilities.
pub(crate) fn log_softmax(logits: &mut [f32]) {
    let normalizer = normalizer(logits);
    logits.iter_mut().for_each(|l| *l = (f64::from(*l) - normalizer) as f32);
}

fn normalizer(logits: &[f32]) -> f64 {
    let best = largest(logits);
    f64::from(best) + sum_exp(logits, best, 1.0).ln()
}
