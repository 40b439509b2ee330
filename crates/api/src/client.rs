//! HTTP client of the pool's manager, of the command line that talks to it, and of workers that
//! send callbacks. It is in this crate because they share no other crate, and behind a feature
//! because users of the wire types may not need a client. It speaks http, and https with the
//! certificates of a [`Trust`].

use crate::trust::{PinnedVerifier, Trust};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_service::Service;

/// HTTP client with a connection pool.
pub type Client = Legacy<Connector, Full<Bytes>>;

/// Time-out of a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time-out of a TCP connection and its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);
/// Largest head of a response from another host, in bytes.
const MAX_REMOTE_HEAD: usize = 64 << 10;
/// Most headers of a response from another host.
const MAX_REMOTE_HEADERS: usize = 100;

/// A new client for http URLs only: it trusts no certificate.
pub fn client() -> Client {
    let tls = tls(&Trust::Authorities(Vec::new())).expect("ring supports the default versions of TLS");
    builder().build(connector(Arc::new(tls)))
}

/// A new client for this URL. For https it trusts the certificate authorities of the system, or
/// those of `SSL_CERT_FILE` on Linux.
pub fn client_for(url: &str) -> Result<Client, String> {
    match url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
        true => Ok(builder().build(connector(Arc::new(tls(&Trust::System)?)))),
        false => Ok(client()),
    }
}

/// Makes clients for a server on another host, which may be hostile: the size of a response's head
/// is limited.
#[derive(Clone, Debug)]
pub struct RemoteClients {
    tls: Arc<ClientConfig>,
}

impl RemoteClients {
    /// For servers with a certificate that `trust` trusts.
    pub fn new(trust: &Trust) -> Result<RemoteClients, String> {
        Ok(RemoteClients { tls: Arc::new(tls(trust)?) })
    }

    /// A new client, without connections. All clients share the TLS sessions.
    pub fn client(&self) -> Client {
        let mut builder = builder();
        builder.http1_max_headers(MAX_REMOTE_HEADERS).http1_max_buf_size(MAX_REMOTE_HEAD);
        builder.build(connector(self.tls.clone()))
    }
}

fn tls(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let failed = |e: rustls::Error| format!("cannot use TLS: {e}; check the system's certificates, or SSL_CERT_FILE");
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let verified = match trust {
        Trust::System => builder.with_platform_verifier().map_err(failed)?,
        Trust::Authorities(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority.clone()).map_err(|e| format!("invalid certificate of an authority: {e}"))?;
            }
            builder.with_root_certificates(roots)
        }
        Trust::Pinned(pin) => {
            let verifier = PinnedVerifier { pin: *pin, provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(verified.with_no_client_auth())
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Legacy::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(30));
    builder
}

fn connector(tls: Arc<ClientConfig>) -> Connector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    Connector(HttpsConnector::from((connector, tls)))
}

/// Connects to servers, with a time-out that includes the TLS handshake.
#[derive(Clone, Debug)]
pub struct Connector(HttpsConnector<HttpConnector>);

type ConnectorError = Box<dyn Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = ConnectorError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectorError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectorError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move {
            let late = |_| Err(format!("no connection within {HANDSHAKE_TIMEOUT:?}").into());
            tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await.unwrap_or_else(late)
        })
    }
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
    /// An error of the client.
    pub fn of(e: &(dyn Error + 'static)) -> RequestError {
        let mut why = with_sources(e);
        if why.contains("invalid peer certificate") {
            why += "; add its certificate authority to the system's, or name its file in SSL_CERT_FILE (on Linux)";
        }
        RequestError { why, ours: is_ours(e) }
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
