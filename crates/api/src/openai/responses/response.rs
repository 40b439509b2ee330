//! The response object.

use super::output::OutputItem;
use super::request::{
    FunctionTool, ReasoningConfig, ResponseToolChoice, ResponseToolChoiceSchema, TextConfig, Truncation,
};
use crate::text_or::TextOr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseObject)]
pub struct Response {
    /// Unique id.
    pub id: String,
    /// `response`.
    pub object: String,
    /// Time in seconds since 1970.
    pub created_at: u64,
    /// When it was complete, in seconds since 1970.
    pub completed_at: Option<u64>,
    /// Whether it is complete.
    pub status: ResponseStatus,
    /// Always false.
    pub background: bool,
    /// Why it failed.
    pub error: Option<ResponseError>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// As in the request.
    pub instructions: Option<String>,
    /// As in the request.
    pub max_output_tokens: Option<usize>,
    /// As in the request.
    pub metadata: BTreeMap<String, String>,
    /// Name of the model.
    pub model: String,
    /// What the model generated.
    pub output: Vec<OutputItem>,
    /// As in the request.
    pub parallel_tool_calls: bool,
    /// As in the request.
    pub previous_response_id: Option<String>,
    /// As in the request.
    pub reasoning: ReasoningConfig,
    /// Whether the response is kept.
    pub store: bool,
    /// As in the request.
    pub temperature: Option<f32>,
    /// As in the request.
    pub text: TextConfig,
    /// As in the request.
    #[schema(value_type = ResponseToolChoiceSchema)]
    pub tool_choice: TextOr<ResponseToolChoice>,
    /// As in the request.
    pub tools: Vec<FunctionTool>,
    /// As in the request.
    pub top_logprobs: u32,
    /// As in the request.
    pub top_p: Option<f32>,
    /// As in the request.
    pub truncation: Truncation,
    /// Token usage; null until the response has ended.
    pub usage: Option<ResponseUsage>,
    /// As in the request.
    pub user: Option<String>,
}

/// Whether a response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// It is being generated.
    InProgress,
    /// It is complete.
    Completed,
    /// It ended before it was complete.
    Incomplete,
    /// It failed.
    Failed,
}

/// Why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`.
    pub code: String,
    /// What failed, and what to do next.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`: this limit, or the end of the context.
    pub reason: String,
}

/// Token usage of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// Details of the prompt tokens.
    pub input_tokens_details: InputTokensDetails,
    /// Generated tokens, thoughts included.
    pub output_tokens: usize,
    /// Details of the generated tokens.
    pub output_tokens_details: OutputTokensDetails,
    /// Sum of both.
    pub total_tokens: usize,
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
pub struct InputTokensDetails {
    /// Tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Always 0: the prefix cache keeps prompts without being asked to.
    pub cache_write_tokens: usize,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: usize,
}

/// The response of `POST /v1/responses/input_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputTokens {
    /// `response.input_tokens`.
    pub object: String,
    /// Tokens of the prompt.
    pub input_tokens: usize,
}
