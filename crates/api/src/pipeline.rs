//! What huggingface_hub's `InferenceClient` sends to an address: one path for whatever the model does.

use crate::tei::{PredictInputs, PredictInputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What becomes of a classifier's numbers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionToApply {
    /// Shares of one.
    Softmax,
    /// Each label for itself.
    Sigmoid,
    /// Nothing.
    None,
}

/// `POST /` for a model that gives labels.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TextClassificationRequest {
    /// A text, or several.
    #[schema(value_type = PredictInputsSchema)]
    pub inputs: PredictInputs,
    /// How.
    #[serde(default)]
    pub parameters: TextClassificationParameters,
}

/// How labels are given.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct TextClassificationParameters {
    /// What becomes of the model's numbers; by default what its configuration says.
    pub function_to_apply: Option<FunctionToApply>,
    /// Only so many of the best.
    pub top_k: Option<usize>,
}

/// How tokens become entities.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AggregationStrategy {
    /// A token each.
    None,
    /// Neighbours of one kind are one.
    #[default]
    Simple,
    /// A word is what its first token is.
    First,
    /// A word is what its tokens are on average.
    Average,
    /// A word is what its surest token is.
    Max,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum Texts {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

/// `POST /tag`, and `POST /` for a model that labels tokens.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TagRequest {
    /// A text, or several.
    pub inputs: Texts,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// How.
    #[serde(default)]
    pub parameters: TagParameters,
}

/// How tokens are labelled.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct TagParameters {
    /// How tokens become entities.
    #[serde(default)]
    pub aggregation_strategy: AggregationStrategy,
    /// Labels that are left out; by default `O`.
    pub ignore_labels: Option<Vec<String>>,
}

/// A piece of a text with a label.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Tagged {
    /// Its label, of a whole entity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_group: Option<String>,
    /// Its label, of a single token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// How sure the model is.
    pub score: f32,
    /// The piece, as the tokenizer writes it.
    pub word: String,
    /// Its first character.
    pub start: usize,
    /// The character behind it.
    pub end: usize,
}

/// The pieces of one text, or of several.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TagResponse {
    /// Of one that was given by itself.
    One(Vec<Tagged>),
    /// Of a list.
    Several(Vec<Vec<Tagged>>),
}
