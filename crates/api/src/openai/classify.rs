//! Text classification in vLLM's format.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/classify`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ClassifyRequest {
    /// One or several texts.
    pub input: ClassifyInput,
    /// Name of the model; by default the first classifier.
    pub model: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Accepted and ignored.
    pub user: Option<String>,
}

/// One or several texts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum ClassifyInput {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

/// The labels of each text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ClassifyResponse {
    /// Id of this response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Time in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One classification per text, in their order.
    pub data: Vec<Classification>,
    /// Token usage.
    pub usage: ClassifyUsage,
}

/// Classification of a text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Classification {
    /// Index of the text.
    pub index: usize,
    /// The most likely label.
    pub label: String,
    /// Probabilities of all labels, in the model's order.
    pub probs: Vec<f32>,
    /// Number of labels.
    pub num_classes: usize,
}

/// Token usage.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct ClassifyUsage {
    /// Input tokens.
    pub prompt_tokens: usize,
    /// The same number.
    pub total_tokens: usize,
    /// Always 0.
    pub completion_tokens: usize,
}
