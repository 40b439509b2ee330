//! Vectors.

use crate::input::{Inputs, InputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Their bytes as little-endian f32, in base64.
    Base64,
}

/// `POST /v1/embeddings`, `POST /v1/images/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// What is to be embedded: texts, token ids or, for models that see, images as data URIs.
    #[schema(value_type = InputsSchema)]
    pub input: Inputs,
    /// Which model; the first that embeds where none is said.
    pub model: Option<String>,
    /// How vectors are written.
    pub encoding_format: Option<EncodingFormat>,
    /// Only so many numbers of each vector.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Whom the request is for. It is taken and not used.
    pub user: Option<String>,
    /// One of the model's prompts, by name.
    pub prompt_name: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Whether vectors are brought to length one, which is the default.
    pub normalize: Option<bool>,
}

/// Vectors, in the order of the inputs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbeddingResponse {
    /// `list`.
    pub object: String,
    /// A vector an input.
    pub data: Vec<Embedding>,
    /// Who made them.
    pub model: String,
    /// What it cost.
    pub usage: EmbeddingUsage,
}

/// A vector.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    /// The vector.
    pub embedding: Vector,
    /// Of which input.
    pub index: usize,
}

/// A vector as it is written.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// Numbers.
    Float(Vec<f32>),
    /// Bytes in base64.
    Base64(String),
}

/// What it cost.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Tokens that were read.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
}
