//! Ollama's API: chats, completions, embeddings, and the models of the server.

mod chat;
mod embed;
mod generate;
mod keep_alive;
mod models;
mod options;

pub use chat::{Answer, CalledFunction, ChatAnswer, ChatRequest, Message, MessageCall, OllamaTool};
pub use embed::{EmbedAnswer, EmbedInput, EmbedRequest, EmbeddingsAnswer, EmbeddingsRequest};
pub use generate::{GenerateAnswer, GenerateRequest};
pub use keep_alive::{KeepAlive, KeepAliveSchema};
pub use models::{
    DeleteRequest, Listed, Listing, ModelDetails, PullProgress, PullRequest, Running, RunningList, ShowAnswer,
    ShowRequest, Version,
};
pub use options::{AnswerFormat, Options, Think, ThinkLevel};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Cost of a request. Durations are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaCost)]
pub struct Cost {
    /// From the request to the end of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Waiting for the model to load; about 0 for one that is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<usize>,
    /// From the loaded model to the first token: the queue and the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Tokens of the answer, reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<usize>,
    /// From the first token to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

/// Logprobs of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaLogprob)]
pub struct Logprob {
    /// Text of the token.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at this position, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaTopLogprob)]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
}

/// Error response, and the last line of a stream that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaErrorResponse)]
pub struct ErrorResponse {
    /// What failed, and what to do next.
    pub error: String,
}
