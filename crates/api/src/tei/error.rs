//! Error responses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error response of text-embeddings-inference.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// What failed, and what to do next.
    pub error: String,
    /// Type of the error.
    pub error_type: ErrorType,
}

/// Type of an error.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum ErrorType {
    /// The server or the model cannot serve now.
    Unhealthy,
    /// The model failed.
    Backend,
    /// Too many concurrent requests.
    Overloaded,
    /// The request is invalid.
    Validation,
    /// A text could not be tokenized.
    Tokenizer,
    /// The input is empty.
    Empty,
    /// Missing or wrong API key.
    Unauthorized,
    /// Unknown path or model.
    NotFound,
}
