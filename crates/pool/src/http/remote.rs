//! Requests to servers on other hosts. A host can vanish without closing its connections: then a
//! request that waits for the head of its response goes to another worker, and a response that has
//! begun is ended a little later. A host may be hostile: keys of clients never reach it, and headers
//! that change what a browser does with other responses never leave it.

use super::proxy::{Received, SendError, request_to};
use crate::core::{RouteQuery, Target};
use crate::hosts::{Host, PASSED, is_refusal, refused};
use crate::manager::Manager;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use hyper::body::Incoming;
use sconce_api::client::with_sources;
use serde_json::{Map, Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Managers that a request may pass.
const MAX_PASSED: usize = 8;

/// Headers of clients, besides `Authorization`, that no other host gets: they may have the manager's
/// key.
const SECRETS: [HeaderName; 2] = [header::COOKIE, HeaderName::from_static("x-api-key")];

/// Headers of hosts that clients do not get: a response must not change how a browser treats the
/// manager's other responses.
const POLICIES: [HeaderName; 9] = [
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
    header::LOCATION,
    header::REFRESH,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("public-key-pins"),
];

/// The connection of one request to its host.
pub(crate) struct HostLink {
    pub(crate) host: Arc<Host>,
    losses: watch::Receiver<u64>,
    ends: watch::Receiver<u64>,
    pub(super) deadline: Option<Instant>,
}

impl HostLink {
    pub(super) fn new(host: &Arc<Host>) -> HostLink {
        let deadline = host.request_timeout.map(|timeout| Instant::now() + timeout);
        HostLink { host: host.clone(), losses: host.losses(), ends: host.ends(), deadline }
    }

    /// Resolves when the response must end, with the reason.
    pub(super) fn interruption(mut self) -> Pin<Box<dyn Future<Output = String> + Send>> {
        Box::pin(async move {
            tokio::select! {
                () = notified(&mut self.ends) => no_answer(&self.host),
                () = until(self.deadline) => too_late(&self.host),
            }
        })
    }
}

fn no_answer(host: &Host) -> String {
    format!("{} does not answer any more", host.name)
}

pub(super) fn too_late(host: &Host) -> String {
    format!("{} took longer than its request_timeout", host.name)
}

async fn notified(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        // The manager has ended, and this task soon will.
        std::future::pending::<()>().await;
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A request to a host.
pub(super) struct HostRequest<'a> {
    pub(super) parts: &'a Parts,
    pub(super) body: Bytes,
    pub(super) target: &'a Target,
    /// The query that chose the target.
    pub(super) query: RouteQuery<'a>,
}

impl HostRequest<'_> {
    /// Sends the request and waits for the head of the response.
    pub(super) async fn send(self, pool: &Manager, link: &mut HostLink) -> Result<Response<Incoming>, SendError> {
        let host = link.host.clone();
        let error = |why: String, received| SendError { why, received };
        let request = self.build(&host).map_err(|why| error(why, Received::No))?;
        let answer = tokio::select! {
            answer = host.client().request(request) => answer,
            received = wait_for_route(pool, &mut link.losses, &self.query) => {
                return Err(error(no_answer(&host), received));
            }
            () = until(link.deadline) => {
                return Err(error(too_late(&host), Received::Maybe));
            }
        };
        let mut response = answer.map_err(|e| {
            let received = if e.is_connect() { Received::No } else { Received::Maybe };
            error(format!("{}: {}", host.name, with_sources(&e)), received)
        })?;
        host.record_activity();
        // The host was silent before this response, not in it.
        link.ends.mark_unchanged();
        match response.status() {
            status if is_refusal(status) => Err(error(refused(&host.name, status), Received::Refused)),
            // A proxy whose server is down.
            status if status.is_redirection() || status == StatusCode::BAD_GATEWAY => {
                Err(error(refused(&host.name, status), Received::Maybe))
            }
            _ => {
                remove_policies(response.headers_mut());
                Ok(response)
            }
        }
    }

    fn build(&self, host: &Host) -> Result<hyper::Request<Full<Bytes>>, String> {
        let path = self.parts.uri.path_and_query().map_or("/", |p| p.as_str());
        let body = match self.query.model == Some(self.target.model.as_str()) {
            true => self.body.clone(),
            false => with_model(&self.body, &self.target.model),
        };
        let mut request = request_to(self.parts, format!("{}{path}", host.url), host.authorization.clone());
        if let Some(headers) = request.headers_mut() {
            SECRETS.iter().for_each(|h| drop(headers.remove(h)));
            if let Some(id) = &host.manager {
                headers.append(PASSED, id.clone());
            }
        }
        request.body(Full::new(body)).map_err(|e| e.to_string())
    }
}

/// Waits until the host of a request is lost and a worker could take the request, which may be that
/// host again.
async fn wait_for_route(pool: &Manager, losses: &mut watch::Receiver<u64>, query: &RouteQuery<'_>) -> Received {
    notified(losses).await;
    let mut changes = pool.changes();
    let wait = async { while !pool.core().has_route(query) && changes.changed().await.is_ok() {} };
    match tokio::time::timeout(pool.config.timings.hosts.wait, wait).await {
        Ok(()) => Received::HostLost,
        Err(_) => Received::Maybe,
    }
}

/// Why a request is refused that has passed this manager already.
pub(super) fn circle(pool: &Manager, headers: &HeaderMap) -> Option<String> {
    let passed = || headers.get_all(&PASSED).iter();
    let is_circle = passed().any(|id| id.as_bytes() == pool.id.as_bytes()) || passed().count() >= MAX_PASSED;
    is_circle
        .then(|| "the request has come back to this pool: a [[host]] of a pool.toml leads to this pool".to_string())
}

/// The body with the model's name. A host has several models, and would choose among them itself.
fn with_model(body: &Bytes, model: &str) -> Bytes {
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(body) else { return body.clone() };
    let start = body.iter().position(|byte| *byte == b'{');
    if let (Some(start), false, false) = (start, fields.is_empty(), fields.contains_key("model")) {
        // The rest stays as it is, so that no number changes.
        let mut named = format!("{{\"model\":{},", json!(model)).into_bytes();
        named.extend_from_slice(&body[start + 1..]);
        return named.into();
    }
    fields.insert("model".into(), model.into());
    Value::Object(fields).to_string().into()
}

fn remove_policies(headers: &mut HeaderMap) {
    POLICIES.iter().for_each(|name| drop(headers.remove(name)));
    let is_cors = |name: &HeaderName| name.as_str().starts_with("access-control-");
    let cors: Vec<HeaderName> = headers.keys().filter(|name| is_cors(name)).cloned().collect();
    cors.iter().for_each(|name| drop(headers.remove(name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn model_is_added_without_other_changes() {
        let named =
            |body: &str| String::from_utf8(with_model(&Bytes::from(body.to_string()), "m\"1").to_vec()).unwrap();
        assert_eq!(
            named(" {\"x\": 0.10, \"n\": 1e400}".replace("1e400", "7").as_str()),
            "{\"model\":\"m\\\"1\",\"x\": 0.10, \"n\": 7}"
        );
        assert_eq!(named("{}"), "{\"model\":\"m\\\"1\"}");
        assert_eq!(named("{\"model\": null, \"x\": 1}"), "{\"model\":\"m\\\"1\",\"x\":1}");
        for other in ["", "[1]", "no JSON", "{\"a\""] {
            assert_eq!(named(other), other);
        }
    }

    #[test]
    fn headers_for_browsers_are_removed() {
        let mut headers = HeaderMap::new();
        for name in ["content-type", "x-request-id", "set-cookie", "alt-svc", "access-control-allow-origin"] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("x"));
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("y"));
        }
        remove_policies(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "x-request-id"]);
    }
}
