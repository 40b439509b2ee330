//! Anthropic's error format.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = AnthropicErrorResponse)]
pub struct ErrorResponse {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: ErrorBody,
    /// The id of the request, as in the response header `request-id`.
    pub request_id: Option<String>,
}

/// The error object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = AnthropicError)]
pub struct ErrorBody {
    /// `invalid_request_error`, `authentication_error`, `not_found_error`, `overloaded_error`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// What failed, and what to do next.
    pub message: String,
}
