//! HTTP client of the pool's manager, of the command line that talks to it, and of workers that
//! send callbacks. It is in this crate because they share no other crate, and behind a feature
//! because users of the wire types may not need a client.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::time::Duration;

/// HTTP client with a connection pool.
pub type Client = Legacy<HttpConnector, Full<Bytes>>;

/// A new client.
pub fn client() -> Client {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(Duration::from_secs(2)));
    connector.set_nodelay(true);
    Legacy::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .build(connector)
}

/// A request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// HTTP method.
    pub method: Method,
    /// Full URL, such as `http://127.0.0.1:9200/health`.
    pub url: &'a str,
    /// API key, sent as a bearer token.
    pub key: Option<&'a str>,
    /// JSON body.
    pub body: Option<Vec<u8>>,
    /// Time-out for the whole response.
    pub within: Option<Duration>,
    /// Largest response body, in bytes.
    pub largest: usize,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// The body, or why it could not be read.
    pub body: Result<Bytes, String>,
}

impl Call<'_> {
    /// Sends the request and waits for the response.
    pub async fn send(self, client: &Client) -> Result<Answer, RequestError> {
        let mut request = Request::builder().method(self.method).uri(self.url);
        if let Some(key) = self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if self.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(self.body.unwrap_or_default())));
        let request = request.map_err(|e| RequestError::theirs(e.to_string()))?;
        let answer = async {
            let response = client.request(request).await.map_err(|e| RequestError::of(&e))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), self.largest).collect().await;
            Ok(Answer { status, body: body.map(|body| body.to_bytes()).map_err(|e| e.to_string()) })
        };
        match self.within {
            None => answer.await,
            Some(within) => {
                let late = |_| RequestError::theirs(format!("no response within {within:?}"));
                tokio::time::timeout(within, answer).await.map_err(late)?
            }
        }
    }
}

/// Why there is no response.
#[derive(Debug)]
pub struct RequestError {
    /// The error message.
    pub why: String,
    /// Whether this process ran out of a resource, such as file descriptors. Then the error says
    /// nothing about the other side.
    pub ours: bool,
}

impl RequestError {
    fn of(e: &(dyn Error + 'static)) -> RequestError {
        RequestError { why: with_sources(e), ours: is_ours(e) }
    }

    /// An error of the other side.
    pub fn theirs(why: String) -> RequestError {
        RequestError { why, ours: false }
    }
}

/// Whether an error is due to too many open files, or to no free local port.
fn is_ours(e: &(dyn Error + 'static)) -> bool {
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

/// An error message with its sources.
pub fn with_sources(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::fmt;
    use std::io;

    /// An I/O error, wrapped as the HTTP client does.
    #[derive(Debug)]
    struct Wrapped(io::Error);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("it failed")
        }
    }

    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn local_resource_errors_are_distinguished_from_remote_ones() {
        for (errno, ours) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
        ] {
            let lost = RequestError::of(&Wrapped(io::Error::from_raw_os_error(errno.raw_os_error())));
            assert_eq!(lost.ours, ours, "{errno:?}");
            assert!(lost.why.starts_with("it failed: "), "{}", lost.why);
        }
    }
}
