//! Cohere's API: reranking, which Jina's resembles so that responses have the fields of both, and
//! embeddings.

mod embed;
mod rerank;

pub use embed::{
    EmbedContent, EmbedImageUrl, EmbedInput, EmbedInputType, EmbedRequest, EmbedResponse, EmbedTruncate, EmbeddingType,
    EmbeddingsByType,
};
pub use rerank::{Document, RerankRequest, RerankResponse, RerankResult, Returned, Usage};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Cohere's response metadata.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Meta {
    /// API version of the request.
    pub api_version: ApiVersion,
    /// Billed units.
    pub billed_units: BilledUnits,
    /// Input tokens.
    pub tokens: Tokens,
}

/// API version.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ApiVersion {
    /// `1` or `2`.
    pub version: String,
}

/// Billed units.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct BilledUnits {
    /// Searches, of reranking; always 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_units: Option<u64>,
    /// Tokens of embedded texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<usize>,
    /// Embedded images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<usize>,
}

/// Input tokens.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Tokens {
    /// Tokens of query and documents, or of embedded texts.
    pub input_tokens: usize,
}

/// Error response.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereErrorResponse)]
pub struct ErrorResponse {
    /// What failed, and what to do next.
    pub message: String,
}
