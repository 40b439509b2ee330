//! Embeddings.

use crate::input::{Inputs, InputsSchema};
use crate::tei::Pooling;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Encoding of embeddings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Little-endian f32 in base64.
    Base64,
}

/// `POST /v1/embeddings`, `POST /v1/images/embeddings`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// Texts, token ids or, for CLIP models, images as data URIs.
    #[schema(value_type = InputsSchema)]
    pub input: Inputs,
    /// Name of the model; by default the first that embeds.
    pub model: Option<String>,
    /// Encoding of embeddings.
    pub encoding_format: Option<EncodingFormat>,
    /// Truncate embeddings to this dimension.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Accepted and ignored.
    pub user: Option<String>,
    /// Name of one of the model's prompts.
    pub prompt_name: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// L2-normalize the embeddings; the default is true.
    pub normalize: Option<bool>,
    /// How hidden states become one vector; by default as the model's files say.
    pub pooling: Option<Pooling>,
}

/// Embeddings, in the order of the inputs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbeddingResponse {
    /// `list`.
    pub object: String,
    /// One embedding per input.
    pub data: Vec<Embedding>,
    /// Name of the model.
    pub model: String,
    /// Token usage.
    pub usage: EmbeddingUsage,
}

/// An embedding.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    /// The vector.
    pub embedding: Vector,
    /// Index of the input.
    pub index: usize,
}

/// An encoded vector.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// A list of numbers.
    Float(Vec<f32>),
    /// Little-endian f32 in base64.
    Base64(String),
}

/// Token usage.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Input tokens.
    pub prompt_tokens: usize,
    /// The same number.
    pub total_tokens: usize,
}
