//! OpenAI's error format.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error response.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = OpenAiErrorResponse)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// The error object.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct ErrorBody {
    /// What failed, and what to do next.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// Error code: `model_not_found`, `context_length_exceeded`, …
    pub code: Option<String>,
}
