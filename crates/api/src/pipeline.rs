//! Hugging Face pipelines, as huggingface_hub's `InferenceClient` uses them: one path for the
//! model's task.

use crate::tei::{PredictInputs, PredictInputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Function applied to a classifier's logits.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionToApply {
    /// Softmax over all labels.
    Softmax,
    /// Sigmoid of each label.
    Sigmoid,
    /// No function: logits.
    None,
}

/// `POST /` for text classification.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TextClassificationRequest {
    /// One or several texts.
    #[schema(value_type = PredictInputsSchema)]
    pub inputs: PredictInputs,
    /// Parameters.
    #[serde(default)]
    pub parameters: TextClassificationParameters,
}

/// Parameters of text classification.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct TextClassificationParameters {
    /// Function applied to the logits; by default the one of the model's configuration.
    pub function_to_apply: Option<FunctionToApply>,
    /// Return only the `top_k` best labels.
    pub top_k: Option<usize>,
}

/// How labelled tokens are grouped into entities.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AggregationStrategy {
    /// No grouping: one entity per token.
    None,
    /// Adjacent tokens with the same label form an entity.
    #[default]
    Simple,
    /// A word has the label of its first token.
    First,
    /// A word has the label with the highest average score of its tokens.
    Average,
    /// A word has the label of its highest-scoring token.
    Max,
}

/// One or several texts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum Texts {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

/// `POST /tag`, and `POST /` for token classification (NER).
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TagRequest {
    /// One or several texts.
    pub inputs: Texts,
    /// Name of the model; by default the first token classifier.
    pub model: Option<String>,
    /// Parameters.
    #[serde(default)]
    pub parameters: TagParameters,
}

/// Parameters of token classification.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct TagParameters {
    /// How labelled tokens are grouped into entities.
    #[serde(default)]
    pub aggregation_strategy: AggregationStrategy,
    /// Labels to leave out; by default `O`.
    pub ignore_labels: Option<Vec<String>>,
    /// Read texts that are longer than the model in windows that share this many tokens, at most
    /// half of a window. By default they are truncated. Not with the strategy `none`.
    pub stride: Option<usize>,
    /// Labels of the entities to find. GLiNER models need them, and read them before every text:
    /// labels and text together have at most the model's tokens. Other models have labels of their
    /// own.
    #[schema(min_items = 1)]
    pub labels: Option<Vec<String>>,
    /// Leaves out entities with a lower score; by default 0. GLiNER models find entities with a
    /// higher score; by default 0.5.
    #[schema(minimum = 0, maximum = 1)]
    pub threshold: Option<f32>,
    /// Whether an entity may lie inside another one (GLiNER).
    #[serde(default)]
    pub nested: bool,
    /// Whether the same words may have several labels (GLiNER).
    #[serde(default)]
    pub multi_label: bool,
}

/// A labelled part of a text.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Tagged {
    /// Label of an entity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_group: Option<String>,
    /// Label of a single token (strategy `none`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// Score of the label.
    pub score: f32,
    /// The part, as the tokenizer writes it.
    pub word: String,
    /// Character offset where it starts.
    pub start: usize,
    /// Character offset where it ends (exclusive).
    pub end: usize,
}

/// The entities of one or several texts.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TagResponse {
    /// Of a single text.
    One(Vec<Tagged>),
    /// Of a list of texts.
    Several(Vec<Vec<Tagged>>),
}
