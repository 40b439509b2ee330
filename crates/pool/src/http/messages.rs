//! Error responses of the manager in the API dialect of the client.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sconce_api::openai::error::{ErrorBody, ErrorResponse};
use sconce_api::pool::{Code, Failure};
use sconce_api::worker::HEARTBEAT_PATH;
use sconce_api::{anthropic, tei, worker};
use serde_json::{Value, json};

/// The API that a response follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Tei,
    OpenAi,
    Anthropic,
    Cohere,
    Worker,
    Pool,
}

impl Dialect {
    /// The dialect of a path.
    pub(crate) fn of(path: &str) -> Dialect {
        match path {
            "/execute" | "/cancel" => Dialect::Worker,
            "/v1/rerank" | "/v2/rerank" => Dialect::Cohere,
            "/v1/capabilities" | HEARTBEAT_PATH => Dialect::Pool,
            p if p == "/v1/messages" || p.starts_with("/v1/messages/") => Dialect::Anthropic,
            p if p == "/v1/jobs" || p.starts_with("/v1/jobs/") => Dialect::Worker,
            p if p.starts_with("/v2/") => Dialect::Pool,
            p if p.starts_with("/v1/") => Dialect::OpenAi,
            _ => Dialect::Tei,
        }
    }

    /// The body of an error.
    pub(crate) fn body(self, failure: &Failure) -> Value {
        let message = failure.message.clone();
        match self {
            Dialect::Pool => json!(failure),
            Dialect::Cohere => json!({"message": message}),
            Dialect::Tei => json!(tei::ErrorResponse { error: message, error_type: tei_type(failure.error_code) }),
            Dialect::Worker => {
                json!(worker::Failure {
                    retriable: failure.retriable,
                    ..worker::Failure::new(worker_code(failure.error_code), message)
                })
            }
            Dialect::Anthropic => json!(anthropic::error::ErrorResponse {
                kind: "error".into(),
                error: anthropic::error::ErrorBody { kind: anthropic_type(failure.error_code).into(), message },
                request_id: None,
            }),
            Dialect::OpenAi => {
                let (kind, code) = openai(failure.error_code);
                let param = (failure.error_code == Code::ModelNotFound).then(|| "model".to_string());
                json!(ErrorResponse {
                    error: ErrorBody { message, kind: kind.into(), param, code: code.map(Into::into) }
                })
            }
        }
    }

    /// The last event of a broken stream.
    pub(crate) fn error_event(self, failure: &Failure) -> String {
        match self {
            Dialect::Worker => {
                let mut event = self.body(failure);
                event["type"] = "error".into();
                format!("data: {event}\n\ndata: [DONE]\n\n")
            }
            Dialect::Anthropic => format!("event: error\ndata: {}\n\n", self.body(failure)),
            _ => format!("data: {}\n\n", self.body(failure)),
        }
    }
}

fn tei_type(code: Code) -> tei::ErrorType {
    match code {
        Code::InvalidRequest => tei::ErrorType::Validation,
        Code::Unauthorized | Code::Forbidden => tei::ErrorType::Unauthorized,
        Code::ModelNotFound | Code::WorkerNotFound => tei::ErrorType::NotFound,
        Code::WorkerUnavailable | Code::InsufficientVram | Code::GpuUnavailable => tei::ErrorType::Unhealthy,
        Code::WorkerFailed | Code::WorkerStartFailed | Code::WorkerStartTimeout => tei::ErrorType::Backend,
    }
}

fn worker_code(code: Code) -> worker::Code {
    match code {
        // The worker contract has no code for 403.
        Code::InvalidRequest | Code::ModelNotFound | Code::WorkerNotFound | Code::Forbidden => {
            worker::Code::InvalidRequest
        }
        Code::Unauthorized => worker::Code::InvalidApiKey,
        Code::InsufficientVram | Code::GpuUnavailable => worker::Code::InsufficientVram,
        _ => worker::Code::WorkerUnhealthy,
    }
}

fn anthropic_type(code: Code) -> &'static str {
    match code {
        Code::Unauthorized => "authentication_error",
        Code::Forbidden => "permission_error",
        Code::ModelNotFound | Code::WorkerNotFound => "not_found_error",
        Code::InvalidRequest => "invalid_request_error",
        Code::WorkerUnavailable | Code::InsufficientVram | Code::GpuUnavailable => "overloaded_error",
        Code::WorkerFailed | Code::WorkerStartFailed | Code::WorkerStartTimeout => "api_error",
    }
}

fn openai(code: Code) -> (&'static str, Option<&'static str>) {
    match code {
        Code::Unauthorized => ("authentication_error", Some("invalid_api_key")),
        Code::Forbidden => ("permission_error", None),
        Code::ModelNotFound => ("not_found_error", Some("model_not_found")),
        Code::WorkerNotFound => ("not_found_error", None),
        Code::InvalidRequest => ("invalid_request_error", None),
        Code::WorkerUnavailable => ("service_unavailable_error", Some("model_loading")),
        _ => ("server_error", None),
    }
}

/// A failure as a response.
pub(crate) fn error_response(failure: &Failure, dialect: Dialect) -> Response {
    error_response_with_status(failure, dialect, status_of(failure.error_code))
}

/// The response to a request without an API key.
pub(crate) fn missing_key(dialect: Dialect) -> Response {
    let what = "missing API key; send `Authorization: Bearer KEY`";
    let mut body = dialect.body(&Failure::new(Code::Unauthorized, what));
    match dialect {
        Dialect::Worker => body["code"] = json!(worker::Code::MissingApiKey),
        Dialect::OpenAi => body["error"]["code"] = "missing_api_key".into(),
        _ => {}
    }
    respond(StatusCode::UNAUTHORIZED, body)
}

/// A failure as a response with another status.
pub(crate) fn error_response_with_status(failure: &Failure, dialect: Dialect, status: StatusCode) -> Response {
    respond(status, dialect.body(failure))
}

fn respond(status: StatusCode, body: Value) -> Response {
    let mut response = (status, Json(body)).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn status_of(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_format_of_each_dialect() {
        let failure = Failure::new(Code::WorkerFailed, "connection lost");
        assert_eq!(Dialect::of("/embed").body(&failure), json!({"error": "connection lost", "error_type": "Backend"}));
        let openai = Dialect::of("/v1/chat/completions").body(&failure);
        assert_eq!(
            (&openai["error"]["message"], &openai["error"]["type"]),
            (&json!("connection lost"), &json!("server_error"))
        );
        let anthropic = Dialect::of("/v1/messages").body(&failure);
        assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&json!("error"), &json!("api_error")));
        assert!(Dialect::Anthropic.error_event(&failure).starts_with("event: error\ndata: {"));
        assert_eq!(Dialect::of("/v2/rerank").body(&failure), json!({"message": "connection lost"}));
        assert_eq!(Dialect::of("/v2/state").body(&failure)["error_code"], "WORKER_FAILED");
        let want = json!({"code": "WORKER_UNHEALTHY", "message": "connection lost", "retriable": true});
        assert_eq!(Dialect::of("/execute").body(&failure), want);
        let forbidden = Failure::new(Code::Forbidden, "wrong host");
        assert_eq!(Dialect::of("/v2/state").body(&forbidden)["error_code"], "FORBIDDEN");
        assert_eq!(Dialect::of("/v1/chat/completions").body(&forbidden)["error"]["type"], "permission_error");
        assert_eq!(Dialect::of("/v1/jobs/j/stream").body(&forbidden)["code"], "INVALID_REQUEST");
        let last = Dialect::Worker.error_event(&failure);
        assert!(last.contains("\"type\":\"error\"") && last.ends_with("data: [DONE]\n\n"), "{last}");
    }
}
