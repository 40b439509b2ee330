//! Sampling parameters: command-line flags, fields of a JSON line, and `/set` in a chat share one
//! definition.

use crate::output_constraint::OutputConstraint;
use clap::Args;
use sconce_engine::{GenerationParams, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::hash::{BuildHasher, RandomState};

/// Sampling and stop criteria. Parameters that are not given have the model's recommended values.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sampling {
    /// Most tokens of an answer. Default: as many as fit into the context.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<usize>,
    /// Sampling temperature: 0 is greedy, 1 samples from the model's own probabilities.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens.
    #[arg(long, value_name = "K")]
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    /// Nucleus sampling: sample from the smallest set of tokens with total probability P.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    /// Values above 1 make tokens of the prompt and the answer less likely; 1 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    /// Subtract X from a token's logit for each of its occurrences in the answer: -2 to 2.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f32>,
    /// Subtract X from a token's logit if it occurs in the answer: -2 to 2.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f32>,
    /// Number of recent tokens that the penalties consider. Default: all.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty_window: Option<usize>,
    /// Seed of the random numbers: the same seed gives the same answer. Default: random.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// Stop string: end the answer before this text. May be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    stop: Vec<String>,
    /// Add VALUE, -100 to 100, to the logit of token ID. May be repeated.
    #[arg(long, value_name = "ID=VALUE", value_parser = bias)]
    #[serde(with = "biases", skip_serializing_if = "Vec::is_empty")]
    logit_bias: Vec<(u32, f32)>,
    /// Constrain the answer to a format: `json` (an object), `schema:FILE` (JSON of a JSON schema),
    /// `regex:PATTERN` (a text that matches it as a whole) or `grammar:FILE` (a text of a Lark
    /// grammar). In a JSON line: "json", or an object with `schema`, `regex` or `grammar`.
    #[arg(long, value_name = "FORMAT", value_parser = OutputConstraint::parse)]
    #[serde(skip_serializing_if = "Option::is_none")]
    constrain: Option<OutputConstraint>,
}

impl Sampling {
    /// These parameters, with missing ones taken from `base`.
    pub(crate) fn with_defaults(self, base: &Sampling) -> Sampling {
        let list = |own: Vec<String>, base: &[String]| if own.is_empty() { base.to_vec() } else { own };
        Sampling {
            max_tokens: self.max_tokens.or(base.max_tokens),
            temperature: self.temperature.or(base.temperature),
            top_k: self.top_k.or(base.top_k),
            top_p: self.top_p.or(base.top_p),
            min_p: self.min_p.or(base.min_p),
            repetition_penalty: self.repetition_penalty.or(base.repetition_penalty),
            frequency_penalty: self.frequency_penalty.or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.or(base.presence_penalty),
            penalty_window: self.penalty_window.or(base.penalty_window),
            seed: self.seed.or(base.seed),
            stop: list(self.stop, &base.stop),
            logit_bias: if self.logit_bias.is_empty() { base.logit_bias.clone() } else { self.logit_bias },
            constrain: self.constrain.or_else(|| base.constrain.clone()),
        }
    }

    /// Sets a parameter by name from text; `default` resets it.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Value::Object(mut all) = serde_json::to_value(&*self).map_err(|e| e.to_string())? else {
            return Err("settings are not an object".into());
        };
        // A bare word is a string. So is every value of `stop`, which must not become a number.
        let read = || match name {
            "stop" => Ok(Value::from(value)),
            "constrain" => {
                OutputConstraint::parse(value).and_then(|c| serde_json::to_value(c).map_err(|e| e.to_string()))
            }
            _ => Ok(serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))),
        };
        let new = if value == "default" { Value::Null } else { read().map_err(|e| format!("{name}: {e}"))? };
        all.insert(name.into(), new);
        if value == "default" && ["stop", "logit_bias"].contains(&name) {
            all.remove(name);
        }
        let new: Sampling = serde_json::from_value(Value::Object(all)).map_err(|e| format!("{name}: {e}"))?;
        new.check()?;
        *self = new;
        Ok(())
    }

    /// The parameters that are set.
    pub(crate) fn explicit(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        }
    }

    /// Rejects values that no model accepts, before one is loaded.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.max_tokens == Some(0) {
            return Err("max_tokens is 0; an answer has at least one token".into());
        }
        self.params(&GenerationParams::default()).check(usize::MAX).map_err(|e| e.to_string())
    }

    /// A request with these parameters and no prompt yet.
    pub(crate) fn request(&self, recommended: &GenerationParams) -> Request {
        Request {
            params: Some(self.params(recommended)),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            format: self.constrain.as_ref().map(OutputConstraint::format),
            ..Request::default()
        }
    }

    fn params(&self, recommended: &GenerationParams) -> GenerationParams {
        let r = recommended;
        r.clone()
            .with_temperature(self.temperature.unwrap_or(r.temperature))
            .with_top_k(self.top_k.or(r.top_k))
            .with_top_p(self.top_p.unwrap_or(r.top_p))
            .with_min_p(self.min_p.unwrap_or(r.min_p))
            .with_repetition_penalty(self.repetition_penalty.unwrap_or(r.repetition_penalty))
            .with_frequency_penalty(self.frequency_penalty.unwrap_or(r.frequency_penalty))
            .with_presence_penalty(self.presence_penalty.unwrap_or(r.presence_penalty))
            .with_penalty_window(self.penalty_window.or(r.penalty_window))
            .with_logit_bias(self.logit_bias.iter().copied().collect())
            .with_seed(self.seed.unwrap_or_else(any_seed))
    }
}

/// A random seed, below 2^53 so that JSON readers get the same number.
fn any_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 11
}

fn bias(s: &str) -> Result<(u32, f32), String> {
    let parsed = s.split_once('=').and_then(|(id, value)| Some((id.trim().parse().ok()?, value.trim().parse().ok()?)));
    parsed.ok_or_else(|| "expected ID=VALUE, such as 42=-100".into())
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Texts::deserialize(d)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    })
}

/// In JSON, an object from token ids to numbers.
mod biases {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(all: &[(u32, f32)], s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(all.iter().copied())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(u32, f32)>, D::Error> {
        Ok(BTreeMap::<u32, f32>::deserialize(d)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn set_accepts_known_options_and_rejects_others() {
        let mut s = Sampling::default();
        for (name, value) in [
            ("temperature", "0.7"),
            ("max_tokens", "12"),
            ("stop", "42"),
            ("logit_bias", "{\"3\": -1}"),
            ("constrain", "regex:a|b"),
        ] {
            s.set(name, value).unwrap();
        }
        let want = json!({"temperature": 0.7f32, "max_tokens": 12, "stop": ["42"], "logit_bias": {"3": -1.0}, "constrain": {"regex": "a|b"}});
        let got = s.explicit();
        assert!(want.as_object().unwrap().iter().all(|(k, v)| got[k] == *v) && got.len() == 5, "{got:?}");
        for (name, value, why) in [
            ("warmth", "1", "unknown field `warmth`"),
            ("temperature", "warm", "temperature: invalid type"),
            ("temperature", "-1", "0 (the most likely token) or above"),
            ("max_tokens", "0", "at least one"),
            ("top_k", "0", "keeps no token"),
            ("constrain", "yaml", "constrain: expected `json`"),
        ] {
            let e = s.set(name, value).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
        for name in ["temperature", "max_tokens", "stop", "logit_bias", "constrain"] {
            s.set(name, "default").unwrap();
        }
        assert_eq!(s, Sampling::default());
    }

    #[test]
    fn jsonl_options_override_flags_and_flags_override_model() {
        let flags: Sampling =
            serde_json::from_value(json!({"temperature": 0.5, "stop": ["a", "b"], "seed": 7})).unwrap();
        let line: Sampling = serde_json::from_value(json!({"temperature": 0.25, "top_k": 3})).unwrap();
        let model = GenerationParams::default().with_top_p(0.75).with_top_k(Some(50)).with_temperature(0.0);
        let request = line.with_defaults(&flags).request(&model);
        let params = request.params.unwrap();
        assert_eq!((params.temperature, params.top_k, params.top_p, params.seed), (0.25, Some(3), 0.75, 7));
        assert_eq!(request.stop, ["a", "b"]);
    }

    #[test]
    fn default_seed_is_random() {
        let seed = || Sampling::default().request(&GenerationParams::default()).params.unwrap().seed;
        assert_ne!(seed(), seed());
        assert!(seed() < 1 << 53);
    }
}
