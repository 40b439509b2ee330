//! How long a request took, in the format of llama.cpp; OpenAI's chats have it too, if asked.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Time and rate of a prompt and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppTimings)]
pub struct Timings {
    /// Tokens of the prompt that were in the prefix cache.
    pub cache_n: usize,
    /// Tokens of the prompt that were computed.
    pub prompt_n: usize,
    /// Milliseconds until the prompt was computed.
    pub prompt_ms: f64,
    /// Milliseconds per token of the prompt.
    pub prompt_per_token_ms: f64,
    /// Tokens of the prompt per second.
    pub prompt_per_second: f64,
    /// Tokens of the answer.
    pub predicted_n: usize,
    /// Milliseconds from the first token of the answer to the last.
    pub predicted_ms: f64,
    /// Milliseconds per token of the answer after the first.
    pub predicted_per_token_ms: f64,
    /// Tokens of the answer after the first per second.
    pub predicted_per_second: f64,
}

/// How far a prompt is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppPromptProgress)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Those that were in the prefix cache.
    pub cache: usize,
    /// Those that are computed, the cached ones included.
    pub processed: usize,
    /// Milliseconds since the prompt was begun.
    pub time_ms: f64,
}
