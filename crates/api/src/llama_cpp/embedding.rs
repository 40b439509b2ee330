//! `/embedding` and `/embeddings`.

use super::prompt::{Prompts, PromptsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /embedding` or `/embeddings`. One of `content` and `input` is needed.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppEmbeddingRequest)]
pub struct EmbeddingRequest {
    /// One or several texts, as text or tokens.
    #[schema(value_type = Option<PromptsSchema>)]
    pub content: Option<Prompts>,
    /// The same.
    #[schema(value_type = Option<PromptsSchema>)]
    pub input: Option<Prompts>,
    /// Name of the model; by default the first that embeds.
    pub model: Option<String>,
    /// How vectors are scaled: 2 for a length of 1, which is the default, or -1 for not at all.
    pub embd_normalize: Option<i32>,
    /// `none`: a vector per token, never scaled.
    pub pooling: Option<crate::tei::Pooling>,
}

/// The vectors of a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppEmbedding)]
pub struct IndexedEmbedding {
    /// Index of the text.
    pub index: usize,
    /// One vector, or one per token without pooling.
    pub embedding: Vec<Vec<f32>>,
}

/// The vectors of all texts.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppEmbeddingResponse)]
pub struct EmbeddingResponse(pub Vec<IndexedEmbedding>);
