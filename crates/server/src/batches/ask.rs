//! Answers a line of a batch: a request to the server's own router, in this process.

use super::gate::Gate;
use super::line::Line;
use crate::config::Secret;
use crate::error::FaultKind;
use crate::http_context::{Background, fresh_id};
use crate::owner::Owner;
use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use sconce_api::openai::batches::{ResultError, ResultLine, ResultResponse};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// The largest response.
const MAX_RESPONSE: usize = 64 << 20;
/// How long a line is repeated that cannot be answered now, because its model loads for example.
const RETRY_FOR: Duration = Duration::from_secs(600);
/// The first and the longest pause between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Answers the lines of a batch.
#[derive(Clone)]
pub(crate) struct Asker {
    router: Router,
    gate: Arc<Gate>,
    owner: Owner,
    /// The owner's key, as a client sends it.
    authorization: Option<HeaderValue>,
}

impl Asker {
    /// Answers lines for `owner`, whose key is one of `keys`.
    pub(crate) fn new(router: Router, gate: Arc<Gate>, owner: Owner, keys: &[Secret]) -> Asker {
        let bearer = |key: &Secret| HeaderValue::from_str(&format!("Bearer {}", key.expose())).ok();
        let authorization = owner.key(keys).and_then(bearer).map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Asker { router, gate, owner, authorization }
    }

    /// Answers a line. Dropping the future cancels the request.
    pub(crate) async fn ask(&self, line: Line) -> ResultLine {
        let begun = Instant::now();
        let [mut pause, longest] = PAUSES;
        loop {
            let pass = self.gate.enter().await;
            let response = self.send(&line).await;
            if is_for_now(&response) && begun.elapsed() < RETRY_FOR {
                // Lines for other models may go on meanwhile.
                drop((pass, response));
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(longest);
                continue;
            }
            let result = read(response).await;
            let (response, error) = match result {
                Ok(response) => (Some(response), None),
                Err(error) => (None, Some(error)),
            };
            return ResultLine { id: result_id(), custom_id: line.custom_id, response, error };
        }
    }

    async fn send(&self, line: &Line) -> Response<Body> {
        let mut request = Request::new(Body::from(line.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = axum::http::Uri::from_static(line.endpoint.path());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        request.extensions_mut().insert(Background);
        request.extensions_mut().insert(self.owner.clone());
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The id of a result.
pub(super) fn result_id() -> String {
    format!("batch_req_{}", fresh_id())
}

/// Whether the same line may succeed later.
fn is_for_now(response: &Response<Body>) -> bool {
    use FaultKind as K;
    let kind = response.extensions().get::<FaultKind>();
    matches!(kind, Some(K::Overloaded | K::Loading | K::Unhealthy | K::Memory))
}

async fn read(response: Response<Body>) -> Result<ResultResponse, ResultError> {
    let (head, body) = response.into_parts();
    let failed = |code: &str, message: String| ResultError { code: code.into(), message };
    let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(|e| {
        failed(
            "response_too_large",
            format!("the response could not be read, or has more than {MAX_RESPONSE} bytes: {e}"),
        )
    })?;
    let body = serde_json::from_slice(&body.to_bytes());
    let body = body.map_err(|e| failed("server_error", format!("the response is not JSON: {e}")))?;
    let id = head.headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    Ok(ResultResponse { status_code: head.status.as_u16(), request_id: id.into(), body })
}
