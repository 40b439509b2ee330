//! Labels, in vLLM's shape.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/classify`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ClassifyRequest {
    /// A text, or several.
    pub input: ClassifyInput,
    /// Which model; the first that gives labels where none is said.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Whom the request is for. It is taken and not used.
    pub user: Option<String>,
}

/// A text, or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum ClassifyInput {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

/// The labels of each text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ClassifyResponse {
    /// Of this answer.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Who labelled.
    pub model: String,
    /// In the order of the texts.
    pub data: Vec<Classification>,
    /// What it cost.
    pub usage: ClassifyUsage,
}

/// What a model says of a text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Classification {
    /// Of which text.
    pub index: usize,
    /// The likeliest.
    pub label: String,
    /// Of every label, in the order of the model's.
    pub probs: Vec<f32>,
    /// How many there are.
    pub num_classes: usize,
}

/// What it cost.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct ClassifyUsage {
    /// Tokens that were read.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
    /// None are written.
    pub completion_tokens: usize,
}
