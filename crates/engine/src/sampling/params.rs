//! Sampling parameters and their checks.

use derive_setters::Setters;
use std::collections::BTreeMap;
use std::fmt;

/// Sampling parameters. The default samples from the model's own distribution.
#[derive(Clone, Debug, PartialEq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct GenerationParams {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps only the `top_k` likeliest tokens.
    pub top_k: Option<u32>,
    /// Keeps the fewest tokens whose probabilities sum to this; 0 keeps one, 1 all.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the likeliest token's probability.
    pub min_p: f32,
    /// Above 1, tokens of prompt and answer become less likely; below 1, more.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each of its occurrences in the answer.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it occurs in the answer.
    pub presence_penalty: f32,
    /// How many tokens the penalties look back; `None`: all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of tokens.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Seed of the random numbers: the same seed and the same logits give the same tokens.
    pub seed: u64,
    /// Number of answers to one prompt.
    pub n: u32,
    /// `Some(k)`: report the log probabilities of the sampled token and of the k likeliest.
    pub logprobs: Option<u32>,
    /// Whether `logprobs` are those of the distribution that tokens are drawn from, after bias,
    /// penalties, temperature and truncation, instead of the model's own.
    pub sampled_logprobs: bool,
}

impl Default for GenerationParams {
    fn default() -> GenerationParams {
        GenerationParams {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: None,
            logit_bias: BTreeMap::new(),
            seed: 0,
            n: 1,
            logprobs: None,
            sampled_logprobs: false,
        }
    }
}

/// An invalid parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Its name, as in [`GenerationParams`].
    pub parameter: &'static str,
    /// What is wrong, in a sentence that names it.
    pub why: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Invalid {}

/// The most answers, as in OpenAI's API. Each answer is a sequence, so the number must be limited.
const MOST_ANSWERS: u32 = 128;

impl GenerationParams {
    /// Always the likeliest token. Two tokens that are nearly as likely may still change places
    /// when a batch or a cached prefix rounds differently.
    pub fn deterministic() -> GenerationParams {
        GenerationParams { temperature: 0.0, ..GenerationParams::default() }
    }

    /// For most uses: varied, but on the subject.
    pub fn balanced() -> GenerationParams {
        GenerationParams { temperature: 0.7, top_p: 0.9, top_k: Some(40), ..GenerationParams::default() }
    }

    /// For stories and ideas: more variety, fewer repetitions.
    pub fn creative() -> GenerationParams {
        let (temperature, top_p, top_k) = (1.0, 0.95, Some(50));
        GenerationParams { temperature, top_p, top_k, repetition_penalty: 1.2, ..GenerationParams::default() }
    }

    /// Checks the parameters for a model with this vocabulary size.
    pub fn check(&self, vocabulary: usize) -> Result<(), Invalid> {
        let number = |name, value: f32, good: bool, wanted: &str| match good {
            true => Ok(()),
            false => Err(Invalid { parameter: name, why: format!("{name} is {value}; it must be {wanted}") }),
        };
        let part = |name, value| number(name, value, (0.0..=1.0).contains(&value), "between 0 and 1");
        let penalty = |name, value| number(name, value, (-2.0..=2.0).contains(&value), "between -2 and 2");
        let t = self.temperature;
        number("temperature", t, t.is_finite() && t >= 0.0, "0 (the most likely token) or above")?;
        part("top_p", self.top_p)?;
        part("min_p", self.min_p)?;
        let r = self.repetition_penalty;
        number("repetition_penalty", r, r.is_finite() && r > 0.0, "above 0; 1 is none")?;
        penalty("frequency_penalty", self.frequency_penalty)?;
        penalty("presence_penalty", self.presence_penalty)?;
        let count = |name, good: bool, why: String| if good { Ok(()) } else { Err(Invalid { parameter: name, why }) };
        count("top_k", self.top_k != Some(0), "top_k is 0 and keeps no token; leave it out to keep all".into())?;
        let none = "penalty_window is 0 and looks at no token; leave it out to look at all".into();
        count("penalty_window", self.penalty_window != Some(0), none)?;
        let n = self.n;
        count("n", (1..=MOST_ANSWERS).contains(&n), format!("n is {n}; it must be between 1 and {MOST_ANSWERS}"))?;
        let top = self.logprobs.unwrap_or(0);
        let many = format!("logprobs asks for the {top} most likely tokens; the model has {vocabulary}");
        count("logprobs", top as usize <= vocabulary, many)?;
        for (id, bias) in &self.logit_bias {
            let beyond = format!("logit_bias names token {id}; the model's last is {}", vocabulary.saturating_sub(1));
            count("logit_bias", (*id as usize) < vocabulary, beyond)?;
            let large = format!("logit_bias of token {id} is {bias}; it must be between -100 and 100");
            count("logit_bias", (-100.0..=100.0).contains(bias), large)?;
        }
        Ok(())
    }

    /// Whether the text so far changes the logits.
    pub(crate) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that red-candle's users know: temperature, top_p, top_k, repetition penalty.
    #[test]
    fn presets_have_the_known_values() {
        let of = |p: GenerationParams| {
            p.check(1000).unwrap();
            (p.temperature, p.top_p, p.top_k, p.repetition_penalty)
        };
        assert_eq!(of(GenerationParams::deterministic()).0, 0.0);
        assert_eq!(of(GenerationParams::balanced()), (0.7, 0.9, Some(40), 1.0));
        assert_eq!(of(GenerationParams::creative()), (1.0, 0.95, Some(50), 1.2));
    }

    #[test]
    fn invalid_parameters_are_named_in_the_error() {
        let good = GenerationParams::default();
        assert_eq!(good.check(10), Ok(()));
        let edge = GenerationParams { temperature: 0.0, top_p: 0.0, min_p: 1.0, top_k: Some(u32::MAX), ..good.clone() };
        assert_eq!(edge.check(10), Ok(()));
        let bias = |id, by| GenerationParams { logit_bias: [(id, by)].into(), ..good.clone() };
        assert_eq!(bias(9, -100.0).check(10), Ok(()));
        let bad: [(GenerationParams, &str, &str); 20] = [
            (GenerationParams { temperature: -0.1, ..good.clone() }, "temperature", "temperature is -0.1"),
            (GenerationParams { temperature: f32::NAN, ..good.clone() }, "temperature", "NaN"),
            (GenerationParams { temperature: f32::INFINITY, ..good.clone() }, "temperature", "inf"),
            (GenerationParams { top_p: 1.1, ..good.clone() }, "top_p", "top_p is 1.1; it must be between 0 and 1"),
            (GenerationParams { top_p: -0.5, ..good.clone() }, "top_p", "-0.5"),
            (GenerationParams { top_p: f32::NAN, ..good.clone() }, "top_p", "NaN"),
            (GenerationParams { min_p: 2.0, ..good.clone() }, "min_p", "between 0 and 1"),
            (GenerationParams { repetition_penalty: 0.0, ..good.clone() }, "repetition_penalty", "above 0"),
            (GenerationParams { repetition_penalty: f32::NAN, ..good.clone() }, "repetition_penalty", "NaN"),
            (GenerationParams { frequency_penalty: 2.5, ..good.clone() }, "frequency_penalty", "between -2 and 2"),
            (GenerationParams { presence_penalty: f32::NAN, ..good.clone() }, "presence_penalty", "NaN"),
            (GenerationParams { top_k: Some(0), ..good.clone() }, "top_k", "keeps no token"),
            (GenerationParams { penalty_window: Some(0), ..good.clone() }, "penalty_window", "no token"),
            (GenerationParams { n: 0, ..good.clone() }, "n", "between 1 and 128"),
            (GenerationParams { n: 129, ..good.clone() }, "n", "129"),
            (GenerationParams { logprobs: Some(11), ..good.clone() }, "logprobs", "the model has 10"),
            (bias(10, 1.0), "logit_bias", "names token 10; the model's last is 9"),
            (bias(1, 101.0), "logit_bias", "between -100 and 100"),
            (bias(1, f32::NAN), "logit_bias", "NaN"),
            (bias(1, f32::NEG_INFINITY), "logit_bias", "-inf"),
        ];
        for (params, parameter, why) in bad {
            let invalid = params.check(10).unwrap_err();
            assert_eq!(invalid.parameter, parameter);
            assert!(invalid.to_string().contains(why), "{invalid}");
        }
    }
}
