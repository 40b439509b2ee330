//! Asking others over HTTP: workers, and for the command line the manager itself.

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use std::time::Duration;

/// Keeps connections, and opens new ones.
pub(crate) type Client = Legacy<HttpConnector, Full<Bytes>>;

/// The most bytes of an answer that is read whole.
const LARGEST: usize = 16 << 20;

pub(crate) fn client() -> Client {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(Duration::from_secs(2)));
    connector.set_nodelay(true);
    Legacy::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .build(connector)
}

/// Why nothing came back.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) why: String,
    /// Whether it is for want of something of ours, and so says nothing of who was asked.
    pub(crate) ours: bool,
}

impl Lost {
    fn of(e: &(dyn std::error::Error + 'static)) -> Lost {
        Lost { why: said(e), ours: is_ours(e) }
    }

    fn theirs(why: String) -> Lost {
        Lost { why, ours: false }
    }
}

/// Whether an error comes of too many open files, or of no port left to ask from.
fn is_ours(e: &(dyn std::error::Error + 'static)) -> bool {
    let mut at = Some(e);
    while let Some(e) = at {
        if let Some(e) = e.downcast_ref::<std::io::Error>() {
            let out = e.kind() == std::io::ErrorKind::AddrNotAvailable;
            #[cfg(unix)]
            let out = out || {
                use rustix::io::Errno;
                let none_left = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
                e.raw_os_error().is_some_and(|code| none_left.iter().any(|n| n.raw_os_error() == code))
            };
            if out {
                return true;
            }
        }
        at = e.source();
    }
    false
}

/// The text of a page.
pub(crate) async fn get(client: &Client, url: &str, key: &str, within: Duration) -> Result<Bytes, Lost> {
    let request = Request::get(url).header(header::AUTHORIZATION, format!("Bearer {key}")).body(Full::default());
    let request = request.map_err(|e| Lost::theirs(e.to_string()))?;
    let answer = async {
        let response = client.request(request).await.map_err(|e| Lost::of(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        match (status.is_success(), body) {
            (true, Ok(body)) => Ok(body.to_bytes()),
            (true, Err(e)) => Err(Lost::theirs(e.to_string())),
            (false, _) => Err(Lost::theirs(format!("it answered {status}"))),
        }
    };
    tokio::time::timeout(within, answer).await.map_err(|_| Lost::theirs(format!("no answer within {within:?}")))?
}

/// An error with what is behind it.
pub(crate) fn said(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}

/// What the command line asks a manager.
pub struct Asker {
    /// `http://127.0.0.1:9200`.
    pub url: String,
    /// The manager's key, if it has one.
    pub key: Option<String>,
}

impl Asker {
    /// Asks, and gives the answer with its status; a JSON body as it is, anything else as a text.
    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<(StatusCode, Value), String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url.trim_end_matches('/')));
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
        let request = request.body(Full::new(body)).map_err(|e| format!("{}: {e}", self.url))?;
        let url = &self.url;
        let response = client()
            .request(request)
            .await
            .map_err(|e| format!("no manager answers at {url}: {}; start one with `sconce pool serve`", said(&e)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|e| format!("{url}: {e}"))?;
        let bytes = body.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// As the client wraps it.
    #[derive(Debug, thiserror::Error)]
    #[error("it failed")]
    struct Wrapped(#[source] io::Error);

    #[test]
    #[cfg(unix)]
    fn want_of_our_own_is_told_from_theirs() {
        use rustix::io::Errno;
        for (errno, ours) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
        ] {
            let lost = Lost::of(&Wrapped(io::Error::from_raw_os_error(errno.raw_os_error())));
            assert_eq!(lost.ours, ours, "{errno:?}");
            assert!(lost.why.starts_with("it failed: "), "{}", lost.why);
        }
    }
}
