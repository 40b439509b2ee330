//! How OpenAI words errors.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = OpenAiErrorResponse)]
pub struct ErrorResponse {
    /// In an object of its own.
    pub error: ErrorBody,
}

/// What went wrong, inside.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct ErrorBody {
    /// In words.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The field at fault.
    pub param: Option<String>,
    /// In one word: `model_not_found`, `context_length_exceeded`, …
    pub code: Option<String>,
}
