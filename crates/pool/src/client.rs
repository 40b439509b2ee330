//! HTTP client: the manager's requests to workers, and the command line's requests to a manager.

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use sconce_api::client::{Answer, Call, Client, RequestError, client_for};
use serde_json::Value;
use std::time::Duration;

/// Largest response that is read, in bytes.
const MAX_BODY: usize = 16 << 20;

/// Gets the body of a page.
pub(crate) async fn get(client: &Client, url: &str, key: &str, within: Duration) -> Result<Bytes, RequestError> {
    let (key, within) = (Some(key), Some(within));
    let call = Call { method: Method::GET, url, key, body: None, within, largest: MAX_BODY };
    match call.send(client).await? {
        Answer { status, body } if status.is_success() => body.map_err(RequestError::theirs),
        Answer { status, .. } => Err(RequestError::theirs(format!("it answered {status}"))),
    }
}

/// Client of a manager, for the command line.
pub struct ManagerClient {
    /// `http://127.0.0.1:9200`.
    pub url: String,
    /// The manager's API key, if it has one.
    pub key: Option<String>,
}

impl ManagerClient {
    /// Sends a request and returns status and body; a body that is not JSON is returned as a
    /// string.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), String> {
        let (manager, url) = (&self.url, format!("{}{path}", self.url.trim_end_matches('/')));
        let (key, body) = (self.key.as_deref(), body.map(|body| body.to_string().into_bytes()));
        let call = Call { method, url: &url, key, body, within: None, largest: MAX_BODY };
        let Answer { status, body } = call.send(&client_for(manager)?).await.map_err(|lost| {
            format!("no manager answers at {manager}: {}; start one with `sconce pool serve`", lost.why)
        })?;
        let bytes = body.map_err(|why| format!("{manager}: {why}"))?;
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text())))
    }
}
