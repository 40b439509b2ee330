//! `/predict`: text classification.

use super::TruncationDirection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A text or a text pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOrPair {
    /// The first text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
}

/// One or several inputs to classify: `"a"`, `["a"]` and `["a", "b"]` are one input, `[["a"], ["a",
/// "b"]]` are two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictInputs {
    /// In the order given.
    pub items: Vec<TextOrPair>,
    /// Whether it was a single input, not a list.
    pub alone: bool,
}

impl<'de> Deserialize<'de> for PredictInputs {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<PredictInputs, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a text, a pair of texts, or a list of lists of one or two texts")]
        enum Raw {
            One(String),
            Pair(Vec<String>),
            Several(Vec<Vec<String>>),
        }
        let of = |texts: Vec<String>| match <[String; 2]>::try_from(texts) {
            Ok([text, pair]) => Ok(TextOrPair { text, pair: Some(pair) }),
            Err(texts) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => Ok(TextOrPair { text, pair: None }),
                Err(texts) => {
                    let what = format!("an input has {} texts; it must have one, or two for a pair", texts.len());
                    Err(serde::de::Error::custom(what))
                }
            },
        };
        Ok(match Raw::deserialize(from)? {
            Raw::One(text) => PredictInputs { items: vec![TextOrPair { text, pair: None }], alone: true },
            Raw::Pair(texts) if texts.is_empty() => PredictInputs { items: Vec::new(), alone: false },
            Raw::Pair(texts) => PredictInputs { items: vec![of(texts)?], alone: true },
            Raw::Several(all) => {
                PredictInputs { items: all.into_iter().map(of).collect::<Result<_, _>>()?, alone: false }
            }
        })
    }
}

/// OpenAPI schema of [`PredictInputs`].
#[derive(ToSchema)]
#[schema(as = PredictInputs)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum PredictInputsSchema {
    /// A text.
    One(String),
    /// A text, or a pair of texts.
    Pair(Vec<String>),
    /// Several inputs, each a text or a pair of texts.
    Several(Vec<Vec<String>>),
}

/// `POST /predict`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct PredictRequest {
    /// Texts or text pairs to classify.
    #[schema(value_type = PredictInputsSchema)]
    pub inputs: PredictInputs,
    /// Name of the model; by default the first classifier.
    pub model: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end is cut off.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Return logits instead of probabilities.
    #[serde(default)]
    pub raw_scores: bool,
}

/// A label and its score.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Prediction {
    /// Probability, or logit if `raw_scores` is set.
    pub score: f32,
    /// Name of the label in the model's configuration.
    pub label: String,
}

/// The labels of one or several inputs, best first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PredictResponse {
    /// Of a single input.
    One(Vec<Prediction>),
    /// Of a list of inputs.
    Several(Vec<Vec<Prediction>>),
}
