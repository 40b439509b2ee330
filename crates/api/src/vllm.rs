//! vLLM's API for models that do not generate: scores of text pairs, and pooled outputs.
//! (Classification is in [`crate::openai::classify`].)

use crate::input::{Inputs, InputsSchema};
use crate::openai::common::OneOrMore;
use crate::openai::embeddings::EncodingFormat;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /score`, `POST /v1/score`. The two sides of the pairs are `text_1` and `text_2`, `queries`
/// and `documents`, `queries` and `items`, or `data_1` and `data_2`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct ScoreRequest {
    /// Name of the model; by default the first that scores pairs.
    pub model: Option<String>,
    /// First text of the pairs; one text is paired with each of the other side.
    pub text_1: Option<OneOrMore>,
    /// Second text of the pairs.
    pub text_2: Option<OneOrMore>,
    /// Another name of `text_1`.
    pub queries: Option<OneOrMore>,
    /// Another name of `text_2`.
    pub documents: Option<OneOrMore>,
    /// Another name of `text_2`.
    pub items: Option<OneOrMore>,
    /// Another name of `text_1`.
    pub data_1: Option<OneOrMore>,
    /// Another name of `text_2`.
    pub data_2: Option<OneOrMore>,
    /// Truncate the input to this many tokens; −1: to the model's limit. By default texts that are
    /// too long are refused, unless the server truncates.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Which end truncation keeps.
    pub truncation_side: Option<TruncationSide>,
    /// Scores of rerankers from 0 to 1 (the default), or logits.
    pub use_activation: Option<bool>,
    /// Accepted and ignored.
    pub user: Option<String>,
}

/// Which side of a text is truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TruncationSide {
    /// The beginning is cut off.
    Left,
    /// The end is cut off.
    #[default]
    Right,
}

/// Scores of pairs of texts.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ScoreResponse {
    /// Id of this response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Time in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One score per pair, in their order.
    pub data: Vec<Score>,
    /// Token usage.
    pub usage: PoolingUsage,
}

/// Score of a pair.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Score {
    /// Index of the pair.
    pub index: usize,
    /// `score`.
    pub object: String,
    /// Of a reranker: relevance from 0 to 1. Of an embedding model: cosine similarity. Of a
    /// multi-vector model: MaxSim, the sum over the tokens of the first text.
    pub score: f32,
}

/// Token usage.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct PoolingUsage {
    /// Input tokens.
    pub prompt_tokens: usize,
    /// The same number.
    pub total_tokens: usize,
    /// Always 0.
    pub completion_tokens: usize,
}

/// `POST /pooling`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct PoolingRequest {
    /// Texts or token ids.
    #[schema(value_type = InputsSchema)]
    pub input: Inputs,
    /// Name of the model; by default the first that fits the task.
    pub model: Option<String>,
    /// What to return; by default what the model is for.
    pub task: Option<PoolingTask>,
    /// Encoding of the results.
    pub encoding_format: Option<EncodingFormat>,
    /// Must be `float32` if set.
    pub embed_dtype: Option<String>,
    /// Must be `native` or `little` if set.
    pub endianness: Option<String>,
    /// Truncate embeddings to this dimension.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Embeddings are L2-normalized, and classes have probabilities (the default), or not.
    pub use_activation: Option<bool>,
    /// Truncate the input to this many tokens; −1: to the model's limit. By default texts that are
    /// too long are refused, unless the server truncates.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Which end truncation keeps.
    pub truncation_side: Option<TruncationSide>,
    /// Must be true if set.
    pub add_special_tokens: Option<bool>,
    /// Accepted and ignored.
    pub user: Option<String>,
}

/// What `/pooling` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolingTask {
    /// One embedding per input.
    Embed,
    /// Probabilities of all classes of a classifier.
    Classify,
    /// One embedding per token of each input.
    TokenEmbed,
}

/// Pooled outputs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolingResponse {
    /// Id of this response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Time in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One result per input, in their order.
    pub data: Vec<Pooled>,
    /// Token usage.
    pub usage: PoolingUsage,
}

/// Result of an input.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Pooled {
    /// Index of the input.
    pub index: usize,
    /// `pooling`.
    pub object: String,
    /// The result.
    pub data: PooledData,
}

/// Data of a result.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PooledData {
    /// A vector: an embedding, or the probabilities of classes.
    Vector(Vec<f32>),
    /// A vector per token.
    Tokens(Vec<Vec<f32>>),
    /// All numbers as little-endian f32 in base64.
    Base64(String),
}
