//! `/rerank`.

use super::TruncationDirection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /rerank`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = TeiRerankRequest)]
pub struct RerankRequest {
    /// The query.
    pub query: String,
    /// The texts to rank.
    pub texts: Vec<String>,
    /// Name of the model; by default the first reranker.
    pub model: Option<String>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end is cut off.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Return logits instead of scores between 0 and 1.
    #[serde(default)]
    pub raw_scores: bool,
    /// Return the texts.
    #[serde(default)]
    pub return_text: bool,
    /// Return this many of the most relevant texts, as in llama.cpp; by default all.
    #[schema(minimum = 1)]
    pub top_n: Option<usize>,
    /// Which hidden states of query and text the classifier reads.
    #[serde(default)]
    pub pooling: RankPooling,
}

/// What a reranker's classifier reads of query and text.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RankPooling {
    /// The model's own head; for BERT its pooler.
    #[default]
    Pooler,
    /// The first token's hidden state, for BERT models trained without a pooler.
    Cls,
    /// The mean of all hidden states, for BERT models trained without a pooler.
    Mean,
}

/// A ranked text.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Rank {
    /// Index of the text in the request.
    pub index: usize,
    /// The text, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Relevance to the query.
    pub score: f32,
}

/// All texts, most relevant first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TeiRerankResponse)]
pub struct RerankResponse(pub Vec<Rank>);
