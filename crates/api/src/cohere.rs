//! Cohere's and Jina's rerank, which are alike: what one has and the other has not is answered to both.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A document.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "a text, or an object with a `text`")]
pub enum Document {
    /// As it is.
    Text(String),
    /// In an object.
    Object {
        /// Its text.
        text: String,
    },
}

impl Document {
    /// Its text.
    pub fn into_text(self) -> String {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// `POST /v1/rerank`, `POST /v2/rerank`, and `POST /rerank` with `documents`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct RerankRequest {
    /// Which model; the first that ranks where none is said.
    pub model: Option<String>,
    /// What is looked for.
    pub query: String,
    /// Where it may be found.
    pub documents: Vec<Document>,
    /// Only so many of the best.
    pub top_n: Option<usize>,
    /// Give the documents back.
    pub return_documents: Option<bool>,
    /// Only so many tokens of each document are read.
    pub max_tokens_per_doc: Option<usize>,
    /// Cut what is longer than the model can take (the default of this dialect), or refuse it.
    pub truncate: Option<bool>,
}

/// An order of documents.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RerankResponse {
    /// Of this answer.
    pub id: String,
    /// Who ranked.
    pub model: String,
    /// The best first.
    pub results: Vec<RerankResult>,
    /// As Cohere has it.
    pub meta: Meta,
    /// As Jina has it.
    pub usage: Usage,
}

/// A document in its place.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RerankResult {
    /// Which document.
    pub index: usize,
    /// How well it answers, from 0 to 1.
    pub relevance_score: f32,
    /// The document, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Returned>,
}

/// A document given back.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Returned {
    /// Its text.
    pub text: String,
}

/// About an answer, as Cohere tells it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Meta {
    /// Which of its versions was spoken.
    pub api_version: ApiVersion,
    /// What it would be billed.
    pub billed_units: BilledUnits,
    /// Tokens that were read.
    pub tokens: Tokens,
}

/// A version of the dialect.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ApiVersion {
    /// `1` or `2`.
    pub version: String,
}

/// What it would be billed.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct BilledUnits {
    /// Searches.
    pub search_units: u64,
}

/// Tokens that were read.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Tokens {
    /// Query and documents together.
    pub input_tokens: usize,
}

/// About an answer, as Jina tells it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RerankUsage)]
pub struct Usage {
    /// Tokens that were read.
    pub total_tokens: usize,
    /// The same.
    pub prompt_tokens: usize,
}

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereErrorResponse)]
pub struct ErrorResponse {
    /// In words.
    pub message: String,
}
