//! Errors of requests, defined once; each API writes them in its own JSON format.

use crate::dialect::llama_cpp;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sconce_api::worker::Code;
use sconce_api::{anthropic, llama_cpp as llama_cpp_api, ollama, openai, tei};
use sconce_engine::{Error as EngineError, ErrorClass};
use serde_json::{Map, Value, json};
use std::fmt;
use std::time::Duration;

/// The API whose formats a response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// text-embeddings-inference.
    Tei,
    /// OpenAI.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Cohere's and Jina's rerank, and Cohere's embeddings.
    Cohere,
    /// Ollama.
    Ollama,
    /// A worker of a pool.
    Worker,
    /// llama.cpp.
    LlamaCpp,
}

impl Dialect {
    /// The API of a path, whether or not the path exists.
    pub fn of(path: &str) -> Dialect {
        match path {
            "/v1/rerank" | "/v2/rerank" | "/v2/embed" => Dialect::Cohere,
            // vLLM's own paths have errors in OpenAI's format.
            "/score" | "/pooling" => Dialect::OpenAi,
            "/execute" | "/cancel" | "/shutdown" | "/v1/ready" | "/v1/loading/progress" | "/v1/capabilities" => {
                Dialect::Worker
            }
            path if path == "/v1/messages" || path.starts_with("/v1/messages/") => Dialect::Anthropic,
            path if llama_cpp::PATHS.contains(&path) => Dialect::LlamaCpp,
            path if path == "/v1/jobs" || path.starts_with("/v1/jobs/") => Dialect::Worker,
            path if path.starts_with("/api/") => Dialect::Ollama,
            path if path.starts_with("/v1/") || path.starts_with("/v2/") => Dialect::OpenAi,
            _ => Dialect::Tei,
        }
    }
}

/// Kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The request is malformed, or a field has a value that cannot be honoured.
    Invalid,
    /// The input is empty.
    Empty,
    /// A text could not be tokenized.
    Tokenizer,
    /// More inputs than a request may have.
    TooMany,
    /// A text is longer than the model's limit.
    TooLong,
    /// The body is larger than the limit.
    TooLarge,
    /// The content type is not JSON.
    Media,
    /// Unknown path or job.
    NoRoute,
    /// The path does not support this method.
    Method,
    /// Unknown model.
    NoModel,
    /// The model does not support this request.
    UnsupportedTask,
    /// Missing or wrong API key.
    Unauthorized,
    /// Only allowed from this machine.
    Forbidden,
    /// Conflicts with the current state.
    Conflict,
    /// Too many concurrent requests.
    Overloaded,
    /// The model is loading.
    Loading,
    /// The model failed to load.
    LoadFailed,
    /// The model or the server cannot serve now.
    Unhealthy,
    /// Not enough memory.
    Memory,
    /// The model failed.
    Backend,
    /// A bug of ours.
    Internal,
    /// The request timed out.
    Timeout,
    /// The client sends or reads too slowly.
    ClientTooSlow,
    /// The client disconnected or cancelled.
    Cancelled,
}

/// Default of `Retry-After`.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The error of a request.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Kind of error.
    pub kind: FaultKind,
    /// What failed, on what input, and what to do next.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// OpenAI's error code; a default per kind if `None`.
    pub code: Option<&'static str>,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Further keys of the error's JSON body.
    pub details: Option<Box<Value>>,
}

impl Fault {
    /// An error of this kind.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), param: None, code: None, retry_after: None, details: None }
    }

    /// An invalid request, the most common kind.
    pub fn invalid(message: impl Into<String>) -> Fault {
        Fault::new(FaultKind::Invalid, message)
    }

    /// Sets the field at fault.
    pub fn at(self, param: &str) -> Fault {
        Fault { param: Some(param.to_owned()), ..self }
    }

    /// Sets the error code.
    pub fn code(self, code: &'static str) -> Fault {
        Fault { code: Some(code), ..self }
    }

    /// Sets `Retry-After`.
    pub fn retry_after(self, after: Duration) -> Fault {
        Fault { retry_after: Some(after), ..self }
    }

    /// Adds keys to the JSON body.
    pub fn details(self, details: Value) -> Fault {
        Fault { details: Some(Box::new(details)), ..self }
    }

    /// Adds the id of the request to the JSON body, as Anthropic's errors have it.
    pub(crate) fn request_id(self, id: &str) -> Fault {
        let mut details = match self.details.as_deref() {
            Some(Value::Object(details)) => details.clone(),
            _ => Map::new(),
        };
        details.insert("request_id".into(), id.into());
        self.details(Value::Object(details))
    }

    /// The HTTP status, which depends on the API.
    pub fn status(&self, dialect: Dialect) -> StatusCode {
        use FaultKind as K;
        let (tei, anthropic) = (dialect == Dialect::Tei, dialect == Dialect::Anthropic);
        // The worker contract has a status per code; other kinds use plain HTTP statuses.
        if dialect == Dialect::Worker
            && !matches!(
                self.kind,
                K::NoRoute | K::Method | K::Media | K::TooLarge | K::ClientTooSlow | K::Forbidden | K::Conflict
            )
        {
            return StatusCode::from_u16(self.worker_code().status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        }
        match self.kind {
            K::Invalid | K::Tokenizer | K::TooLong | K::UnsupportedTask if tei => StatusCode::UNPROCESSABLE_ENTITY,
            K::TooMany if tei => StatusCode::PAYLOAD_TOO_LARGE,
            K::Backend if tei => StatusCode::FAILED_DEPENDENCY,
            K::Loading | K::Unhealthy | K::Memory if anthropic => overloaded(),
            K::Invalid | K::Empty | K::Tokenizer | K::TooMany | K::TooLong | K::UnsupportedTask => {
                StatusCode::BAD_REQUEST
            }
            K::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            K::Media => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            K::NoRoute | K::NoModel => StatusCode::NOT_FOUND,
            K::Method => StatusCode::METHOD_NOT_ALLOWED,
            K::Unauthorized => StatusCode::UNAUTHORIZED,
            K::Forbidden => StatusCode::FORBIDDEN,
            K::Conflict => StatusCode::CONFLICT,
            K::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            K::Loading | K::LoadFailed | K::Unhealthy | K::Memory => StatusCode::SERVICE_UNAVAILABLE,
            K::Backend | K::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            K::Timeout => StatusCode::GATEWAY_TIMEOUT,
            K::ClientTooSlow => StatusCode::REQUEST_TIMEOUT,
            // No client reads it; the number is for logs, as in nginx.
            K::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        }
    }

    /// The JSON body in the API's format.
    pub fn body(&self, dialect: Dialect) -> Value {
        let mut body = match dialect {
            Dialect::Tei => {
                json!(tei::ErrorResponse { error: self.message.clone(), error_type: self.tei_type() })
            }
            Dialect::OpenAi => json!(openai::error::ErrorResponse {
                error: openai::error::ErrorBody {
                    message: self.message.clone(),
                    kind: self.openai_type().into(),
                    param: self.param.clone(),
                    code: self.openai_code().map(Into::into),
                }
            }),
            Dialect::Anthropic => json!(anthropic::error::ErrorResponse {
                kind: "error".into(),
                error: self.anthropic(),
                request_id: None,
            }),
            Dialect::Cohere => json!({"message": self.message}),
            Dialect::Ollama => json!(ollama::ErrorResponse { error: self.message.clone() }),
            Dialect::LlamaCpp => {
                let number = |name: &str| self.details.as_ref().and_then(|details| details[name].as_u64());
                let number = |name| number(name).and_then(|number| usize::try_from(number).ok());
                json!(llama_cpp_api::ErrorResponse {
                    error: llama_cpp_api::ErrorBody {
                        code: self.status(dialect).as_u16(),
                        message: self.message.clone(),
                        kind: self.llama_cpp_type().into(),
                        param: self.param.clone(),
                        n_prompt_tokens: number("n_prompt_tokens"),
                        n_ctx: number("n_ctx"),
                    }
                })
            }
            Dialect::Worker => {
                json!({"code": self.worker_code(), "message": self.message, "retriable": self.is_retriable()})
            }
        };
        // Only llama.cpp has the numbers of a prompt that is too long, and in its error object.
        let is_hidden = |name: &str| matches!(name, "n_prompt_tokens" | "n_ctx");
        if let (Value::Object(body), Some(Value::Object(details))) = (&mut body, self.details.as_deref()) {
            body.extend(details.clone().into_iter().filter(|(name, _)| !is_hidden(name)));
        }
        body
    }

    /// The HTTP response in the API's format.
    pub fn response(&self, dialect: Dialect) -> Response {
        let mut response = (self.status(dialect), Json(self.body(dialect))).into_response();
        let status = response.status();
        let retriable =
            matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) || status == overloaded();
        if let Some(after) = self.retry_after.or(retriable.then_some(DEFAULT_RETRY_AFTER)) {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == FaultKind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// Whether the same request may succeed later.
    pub fn is_retriable(&self) -> bool {
        use FaultKind as K;
        matches!(self.kind, K::Overloaded | K::Loading | K::Unhealthy | K::Timeout | K::Memory)
    }

    /// TEI's error type; also the label of TEI's metrics.
    pub fn tei_type(&self) -> tei::ErrorType {
        use FaultKind as K;
        use tei::ErrorType as T;
        match self.kind {
            K::Empty => T::Empty,
            K::Tokenizer => T::Tokenizer,
            K::Overloaded => T::Overloaded,
            K::Loading | K::LoadFailed | K::Unhealthy | K::Memory => T::Unhealthy,
            K::Unauthorized | K::Forbidden => T::Unauthorized,
            K::NoRoute | K::NoModel => T::NotFound,
            K::Backend | K::Internal | K::Timeout | K::Cancelled => T::Backend,
            K::Invalid
            | K::TooMany
            | K::TooLong
            | K::TooLarge
            | K::Media
            | K::Method
            | K::UnsupportedTask
            | K::Conflict
            | K::ClientTooSlow => T::Validation,
        }
    }

    /// Anthropic's error object.
    pub(crate) fn anthropic(&self) -> anthropic::error::ErrorBody {
        use FaultKind as K;
        let kind = match self.kind {
            K::Unauthorized => "authentication_error",
            K::Forbidden => "permission_error",
            K::NoModel | K::NoRoute => "not_found_error",
            K::TooLarge => "request_too_large",
            K::Overloaded => "rate_limit_error",
            K::Loading | K::Unhealthy | K::Memory => "overloaded_error",
            K::Timeout => "timeout_error",
            K::LoadFailed | K::Backend | K::Internal | K::Cancelled => "api_error",
            _ => "invalid_request_error",
        };
        // The error object has no field for the parameter. Clients look for the words of a prompt that
        // is too long, to shorten the conversation.
        let message = match (self.kind, &self.param) {
            (K::TooLong, _) => format!("prompt is too long: {}", self.message),
            (_, Some(param)) => format!("{param}: {}", self.message),
            (_, None) => self.message.clone(),
        };
        anthropic::error::ErrorBody { kind: kind.into(), message }
    }

    fn llama_cpp_type(&self) -> &'static str {
        use FaultKind as K;
        match self.kind {
            K::Unauthorized => "authentication_error",
            K::Forbidden => "permission_error",
            K::NoModel | K::NoRoute => "not_found_error",
            K::TooLong => "exceed_context_size_error",
            K::UnsupportedTask | K::Method => "not_supported_error",
            K::Overloaded | K::Loading | K::LoadFailed | K::Unhealthy | K::Memory => "unavailable_error",
            K::Backend | K::Internal | K::Timeout | K::Cancelled => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn openai_type(&self) -> &'static str {
        use FaultKind as K;
        match self.kind {
            K::Unauthorized => "authentication_error",
            K::Forbidden => "permission_error",
            K::NoModel | K::NoRoute => "not_found_error",
            K::Overloaded => "rate_limit_error",
            K::Loading | K::LoadFailed | K::Unhealthy | K::Memory => "service_unavailable_error",
            K::Backend | K::Internal | K::Timeout | K::Cancelled => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn openai_code(&self) -> Option<&'static str> {
        use FaultKind as K;
        self.code.or(match self.kind {
            K::Unauthorized => Some("invalid_api_key"),
            K::NoModel => Some("model_not_found"),
            K::TooLong => Some("context_length_exceeded"),
            K::Overloaded => Some("rate_limit_exceeded"),
            K::Loading => Some("model_loading"),
            K::LoadFailed => Some("model_load_failed"),
            K::Memory => Some("insufficient_memory"),
            K::Timeout => Some("timeout"),
            _ => None,
        })
    }

    /// The worker contract's error code.
    pub(crate) fn worker_code(&self) -> Code {
        use FaultKind as K;
        match self.kind {
            // Two codes: the client must know whether to send a key or a different key.
            K::Unauthorized if self.code == Some("missing_api_key") => Code::MissingApiKey,
            K::Unauthorized => Code::InvalidApiKey,
            K::Memory => Code::InsufficientVram,
            K::LoadFailed => Code::ModelLoadFailed,
            K::Overloaded | K::Loading | K::Unhealthy => Code::WorkerUnhealthy,
            K::Timeout => Code::InferenceTimeout,
            K::Cancelled => Code::Cancelled,
            K::Backend | K::Internal => Code::Internal,
            _ => Code::InvalidRequest,
        }
    }
}

/// Anthropic's status of a server that cannot answer now.
fn overloaded() -> StatusCode {
    StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// The response only carries the fault; the outermost layer writes it in the API of the path (see
/// `layers.rs`).
impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<EngineError> for Fault {
    fn from(e: EngineError) -> Fault {
        let kind = match &e {
            EngineError::TooLong { .. } => FaultKind::TooLong,
            EngineError::Text { .. } => FaultKind::Tokenizer,
            EngineError::Memory { .. } => FaultKind::Memory,
            EngineError::Stopped { .. } => FaultKind::Unhealthy,
            EngineError::Cancelled => FaultKind::Cancelled,
            EngineError::DeadlineExceeded { .. } => FaultKind::Timeout,
            other => match other.class() {
                ErrorClass::Input => FaultKind::Invalid,
                ErrorClass::Bug => FaultKind::Internal,
                _ => FaultKind::Backend,
            },
        };
        Fault::new(kind, e.to_string())
    }
}
