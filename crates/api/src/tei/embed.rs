//! `/embed`, `/embed_all`, `/embed_sparse` and `/similarity`.

use super::TruncationDirection;
use crate::input::{Inputs, InputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// Texts, token ids or images to embed.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Name of the model; by default the first that embeds.
    pub model: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end is cut off.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Name of one of the model's prompts.
    pub prompt_name: Option<String>,
    /// L2-normalize the embeddings.
    #[serde(default = "super::yes")]
    pub normalize: bool,
    /// Truncate embeddings to this dimension.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// How hidden states become one vector; by default as the model's files say.
    pub pooling: Option<Pooling>,
}

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    #[serde(alias = "last_token", alias = "last-token", alias = "lasttoken")]
    Last,
    /// The largest value of each column.
    Max,
    /// No pooling: one vector per token, as from `/embed_all`.
    None,
}

/// One embedding per input; without pooling, one per token of each input.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbedResponse {
    /// One embedding per input.
    Pooled(Vec<Vec<f32>>),
    /// One embedding per token of each input.
    Tokens(EmbedAllResponse),
}

/// `POST /embed_all` and `POST /embed_sparse`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbedAllRequest {
    /// Texts, token ids or images to embed.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Name of the model; by default the first that supports the request.
    pub model: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end is cut off.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Name of one of the model's prompts.
    pub prompt_name: Option<String>,
}

/// Multi-vector embeddings: one embedding per token of each input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedAllResponse(pub Vec<Vec<Vec<f32>>>);

/// A non-zero weight of a sparse embedding.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct SparseValue {
    /// Token id.
    pub index: u32,
    /// Weight.
    pub value: f32,
}

/// The sparse embedding of each input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedSparseResponse(pub Vec<Vec<SparseValue>>);

/// `POST /similarity`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SimilarityRequest {
    /// The texts to compare.
    pub inputs: SimilarityInputs,
    /// Name of the model; by default the first that supports the request.
    pub model: Option<String>,
    /// Tokenization parameters.
    pub parameters: Option<SimilarityParameters>,
}

/// The texts to compare.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SimilarityInputs {
    /// The text that is compared with all others.
    pub source_sentence: String,
    /// The other texts.
    pub sentences: Vec<String>,
}

/// Tokenization parameters.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SimilarityParameters {
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end is cut off.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Name of one of the model's prompts.
    pub prompt_name: Option<String>,
}

/// Cosine similarity with each text, in their order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SimilarityResponse(pub Vec<f32>);
