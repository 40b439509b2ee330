//! The HTTP client of the pool: of its manager, of the command line that asks it, and of workers that
//! call it back. It is here because those have no other crate in common, and behind a feature because
//! wire types need no client.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::time::Duration;

/// Keeps connections, and opens new ones.
pub type Client = Legacy<HttpConnector, Full<Bytes>>;

/// A client without connections yet.
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
    /// The method.
    pub method: Method,
    /// All of it, `http://127.0.0.1:9200/health`.
    pub url: &'a str,
    /// Sent as a bearer token.
    pub key: Option<&'a str>,
    /// JSON, if there is any.
    pub body: Option<Vec<u8>>,
    /// The longest wait for the whole answer.
    pub within: Option<Duration>,
    /// The most bytes of an answer that are read.
    pub largest: usize,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body, or why that could not be read.
    pub body: Result<Bytes, String>,
}

impl Call<'_> {
    /// Sends it, and waits for the answer.
    pub async fn send(self, client: &Client) -> Result<Answer, Lost> {
        let mut request = Request::builder().method(self.method).uri(self.url);
        if let Some(key) = self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if self.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(self.body.unwrap_or_default())));
        let request = request.map_err(|e| Lost::theirs(e.to_string()))?;
        let answer = async {
            let response = client.request(request).await.map_err(|e| Lost::of(&e))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), self.largest).collect().await;
            Ok(Answer { status, body: body.map(|body| body.to_bytes()).map_err(|e| e.to_string()) })
        };
        match self.within {
            None => answer.await,
            Some(within) => {
                let late = |_| Lost::theirs(format!("no answer within {within:?}"));
                tokio::time::timeout(within, answer).await.map_err(late)?
            }
        }
    }
}

/// Why nothing came back.
#[derive(Debug)]
pub struct Lost {
    /// In words.
    pub why: String,
    /// Whether this process lacks something, such as a file descriptor: then it says nothing of who
    /// was asked.
    pub ours: bool,
}

impl Lost {
    fn of(e: &(dyn Error + 'static)) -> Lost {
        Lost { why: with_sources(e), ours: is_ours(e) }
    }

    /// For a reason of who was asked.
    pub fn theirs(why: String) -> Lost {
        Lost { why, ours: false }
    }
}

/// Whether an error comes of too many open files, or of no port left to ask from.
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

/// An error with what is behind it.
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

    /// As the client wraps it.
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
    fn want_of_our_own_is_told_from_theirs() {
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
