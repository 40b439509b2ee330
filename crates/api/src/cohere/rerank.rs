//! Reranking.

use super::Meta;
use crate::tei::RankPooling;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A document to rank.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "a text, or an object with a `text`")]
pub enum Document {
    /// Plain text.
    Text(String),
    /// An object with a `text`.
    Object {
        /// Text of the document.
        text: String,
    },
}

impl Document {
    /// Text of the document.
    pub fn into_text(self) -> String {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// `POST /v1/rerank`, `POST /v2/rerank`, and `POST /rerank` with `documents`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct RerankRequest {
    /// Name of the model; by default the first reranker.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents to rank.
    pub documents: Vec<Document>,
    /// Return only the `top_n` most relevant documents.
    pub top_n: Option<usize>,
    /// Return the documents.
    pub return_documents: Option<bool>,
    /// Truncate each document to this many tokens.
    pub max_tokens_per_doc: Option<usize>,
    /// Truncate texts that are longer than the model's limit (this API's default), or refuse them.
    pub truncate: Option<bool>,
    /// Which hidden states of query and document the classifier reads.
    #[serde(default)]
    pub pooling: RankPooling,
}

/// Ranked documents.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RerankResponse {
    /// Id of this response.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Most relevant first.
    pub results: Vec<RerankResult>,
    /// Cohere's metadata.
    pub meta: Meta,
    /// Jina's usage.
    pub usage: Usage,
}

/// A ranked document.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RerankResult {
    /// Index of the document in the request.
    pub index: usize,
    /// Relevance to the query, from 0 to 1.
    pub relevance_score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Returned>,
}

/// A returned document.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Returned {
    /// Text of the document.
    pub text: String,
}

/// Jina's usage.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RerankUsage)]
pub struct Usage {
    /// Input tokens.
    pub total_tokens: usize,
    /// The same number.
    pub prompt_tokens: usize,
}
