//! llama.cpp's error format.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error response.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = LlamaCppErrorResponse)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// The error object.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = LlamaCppError)]
pub struct ErrorBody {
    /// The HTTP status.
    pub code: u16,
    /// What failed, and what to do next.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `exceed_context_size_error`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The request field at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Tokens of a prompt that is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<usize>,
    /// The context that it does not fit into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<usize>,
}
