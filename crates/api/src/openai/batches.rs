//! Batches: files of requests that are answered in the background.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use utoipa::{IntoParams, ToSchema};

/// What the requests of a batch ask for: the path that would answer each alone.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = BatchEndpoint)]
pub enum Endpoint {
    /// Chats.
    #[serde(rename = "/v1/chat/completions")]
    ChatCompletions,
    /// Completions.
    #[serde(rename = "/v1/completions")]
    Completions,
    /// Embeddings.
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    /// Responses.
    #[serde(rename = "/v1/responses")]
    Responses,
}

impl Endpoint {
    /// Every endpoint.
    pub const ALL: [Endpoint; 4] =
        [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Embeddings, Endpoint::Responses];

    /// The path.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Responses => "/v1/responses",
        }
    }

    /// The endpoint of a path.
    pub fn of(path: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

/// `POST /v1/batches`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct CreateBatch {
    /// An uploaded file for the purpose `batch`, with a request per line: `{"custom_id": "a",
    /// "method": "POST", "url": "/v1/chat/completions", "body": {…}}`.
    pub input_file_id: String,
    /// The `url` of every request.
    pub endpoint: Endpoint,
    /// `24h`: requests that are not answered by then expire.
    pub completion_window: String,
    /// At most 16 key–value pairs of the client.
    pub metadata: Option<BTreeMap<String, String>>,
    /// When the files with the results are deleted; by default after 30 days.
    pub output_expires_after: Option<OutputExpiresAfter>,
}

/// When the files with the results of a batch are deleted.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct OutputExpiresAfter {
    /// `created_at`, of the files.
    pub anchor: String,
    /// Seconds from then on.
    #[schema(minimum = 3600, maximum = 2592000)]
    pub seconds: u64,
}

/// Which batches of the list, newest first.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BatchQuery {
    /// Only batches after this id, in the order of the list.
    pub after: Option<String>,
    /// The most batches; the default is 20.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
}

/// What a batch is doing.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BatchStatus)]
pub enum Status {
    /// The lines of its file are checked, before any is answered.
    Validating,
    /// Its file has errors, or its results could not be stored; `errors` says why.
    Failed,
    /// Its requests are answered.
    InProgress,
    /// All requests are answered, and the files with the results are written.
    Finalizing,
    /// The files with the results are there.
    Completed,
    /// Not all requests were answered in time. The files have what there is.
    Expired,
    /// It is being cancelled.
    Cancelling,
    /// It was cancelled. The files have what there is.
    Cancelled,
}

impl Status {
    /// Whether it is as it will stay.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Failed | Status::Completed | Status::Expired | Status::Cancelled)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A batch.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Batch {
    /// Its id.
    pub id: String,
    /// `batch`.
    pub object: String,
    /// The `url` of every request.
    pub endpoint: Endpoint,
    /// The model, if all requests name the same.
    pub model: Option<String>,
    /// Why it failed.
    pub errors: Option<BatchErrors>,
    /// The file with the requests.
    pub input_file_id: String,
    /// `24h`.
    pub completion_window: String,
    /// What it is doing.
    pub status: Status,
    /// The file with the responses of requests that succeeded, as soon as the batch has ended.
    pub output_file_id: Option<String>,
    /// The file with the responses of requests that failed, and with requests that were not answered.
    pub error_file_id: Option<String>,
    /// When it was created, in seconds since 1970. So are all of these times.
    pub created_at: u64,
    /// When the first request began.
    pub in_progress_at: Option<u64>,
    /// When it expires.
    pub expires_at: Option<u64>,
    /// When the files with the results began to be written.
    pub finalizing_at: Option<u64>,
    /// When it was complete.
    pub completed_at: Option<u64>,
    /// When it failed.
    pub failed_at: Option<u64>,
    /// When it expired.
    pub expired_at: Option<u64>,
    /// When it began to be cancelled.
    pub cancelling_at: Option<u64>,
    /// When it was cancelled.
    pub cancelled_at: Option<u64>,
    /// Its requests by result.
    pub request_counts: RequestCounts,
    /// Tokens of all requests, as soon as the batch has ended.
    pub usage: Option<BatchUsage>,
    /// The client's key–value pairs.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Requests by result.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct RequestCounts {
    /// All requests.
    pub total: usize,
    /// Those that succeeded.
    pub completed: usize,
    /// Those that failed.
    pub failed: usize,
}

/// Why a batch failed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct BatchErrors {
    /// `list`.
    pub object: String,
    /// The first errors.
    pub data: Vec<BatchError>,
}

/// An error of a batch.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct BatchError {
    /// `invalid_json_line`, `duplicate_custom_id`, `model_not_found`, …
    pub code: String,
    /// What is wrong, and what to do next.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// The line of the file, from 1.
    pub line: Option<usize>,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Tokens of all requests of a batch.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct BatchUsage {
    /// Tokens of prompts and texts.
    pub input_tokens: u64,
    /// Details of these.
    pub input_tokens_details: InputTokensDetails,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Details of these.
    pub output_tokens_details: OutputTokensDetails,
    /// Both.
    pub total_tokens: u64,
}

/// Details of the tokens of prompts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = BatchInputTokensDetails)]
pub struct InputTokensDetails {
    /// Tokens that were in the prefix cache.
    pub cached_tokens: u64,
}

/// Details of generated tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = BatchOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

/// A line of the files with the results.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct ResultLine {
    /// Its id.
    pub id: String,
    /// That of the request.
    pub custom_id: String,
    /// The response; `None` if the request was not answered.
    pub response: Option<ResultResponse>,
    /// Why the request was not answered.
    pub error: Option<ResultError>,
}

/// A response in the files with the results.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct ResultResponse {
    /// The HTTP status.
    pub status_code: u16,
    /// The `x-request-id`.
    pub request_id: String,
    /// The body.
    pub body: Value,
}

/// Why a request of a batch was not answered.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct ResultError {
    /// `batch_expired`, `batch_cancelled`, `response_too_large`.
    pub code: String,
    /// What happened.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_their_paths() {
        for endpoint in Endpoint::ALL {
            assert_eq!(serde_json::to_value(endpoint).unwrap(), endpoint.path());
            assert_eq!(Endpoint::of(&endpoint.to_string()), Some(endpoint));
        }
        assert_eq!(Endpoint::of("/v1/rerank"), None);
        assert_eq!(Status::InProgress.to_string(), "in_progress");
    }
}
