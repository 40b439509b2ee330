//! A small client for one hub: it redirects by hand, so that the token never leaves the endpoint's own host; it always
//! gives up in the end; and it tells a missing thing from a forbidden one.

use std::io::Read;
use std::net::IpAddr;

use ureq::http::{Method, Request, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use super::{HubError, Options};

/// A hub sends one; a CDN perhaps another.
const MOST_REDIRECTS: usize = 5;
/// The list of a repository's files is far shorter.
const INFO_LIMIT: u64 = 32 << 20;

pub(super) struct Client<'a> {
    agent: Agent,
    options: &'a Options,
    home: Uri,
}

/// What the hub says of a file before its bytes are asked for.
#[derive(Debug)]
pub(super) struct Head {
    /// The name of its blob in the cache.
    pub(super) etag: String,
    pub(super) size: Option<u64>,
}

impl Head {
    /// The etag of a large file is its sha256; that of a small one is git's sha1, which covers a header too.
    pub(super) fn sha256(&self) -> Option<&str> {
        (self.etag.len() == 64 && self.etag.bytes().all(|b| b.is_ascii_hexdigit())).then_some(&self.etag)
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(options: &'a Options) -> Result<Self, HubError> {
        let odd =
            |why: &str| HubError::Option(format!("the hub endpoint {} {why}; check HF_ENDPOINT", options.endpoint));
        let home: Uri = options.endpoint.parse().map_err(|_| odd("is not a URL"))?;
        if !matches!(home.scheme_str(), Some("http" | "https")) {
            return Err(odd("must begin with https:// or http://"));
        }
        if home.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(HubError::Option("the hub endpoint carries a password; use HF_TOKEN instead".to_owned()));
        }
        let host = home.host().unwrap_or_default().trim_matches(['[', ']']);
        let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let patience = options.patience;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(if local { None } else { Proxy::try_from_env() })
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent(concat!("sconce/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.silence))
            .timeout_per_read(Some(patience.silence))
            .timeout_per_write(Some(patience.silence))
            .build()
            .new_agent();
        Ok(Self { agent, options, home })
    }

    /// The JSON at `path` of the hub's own API.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, path: &str, what: &str) -> Result<T, HubError> {
        let (response, _) = self.follow(&Method::GET, path, 0, what)?;
        self.ok(&response, what)?;
        let mut text = Vec::new();
        response.into_body().into_reader().take(INFO_LIMIT).read_to_end(&mut text).map_err(|e| self.unreachable(&e))?;
        serde_json::from_slice(&text).map_err(|error| self.odd(what, &format!("unexpected JSON ({error})")))
    }

    /// What the hub itself, not the CDN behind it, says of the file at `path`.
    pub(super) fn head(&self, path: &str, what: &str) -> Result<Head, HubError> {
        let (response, _) = self.follow(&Method::HEAD, path, 0, what)?;
        if !response.status().is_redirection() {
            self.ok(&response, what)?;
        }
        let etag = header(&response, "x-linked-etag").or(header(&response, "etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        // It becomes a file name.
        let plain = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if etag.is_empty() || etag.len() > 128 || !plain {
            return Err(self.odd(what, "no usable ETag"));
        }
        // The length of a redirect's own body says nothing of the file.
        let length = if response.status().is_success() { header(&response, "content-length") } else { None };
        let size = header(&response, "x-linked-size").or(length).and_then(|size| size.parse().ok());
        Ok(Head { etag: etag.to_owned(), size })
    }

    /// The bytes of the file at `path` from `start` on, wherever they are kept. Also how many bytes precede the body:
    /// 0 from a server that knows no ranges.
    pub(super) fn bytes(&self, path: &str, start: u64, what: &str) -> Result<(Body, u64), HubError> {
        let (response, whence) = self.follow(&Method::GET, path, start, what)?;
        let skipped = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = header(&response, "content-range").unwrap_or_default();
                if !range.starts_with(&format!("bytes {start}-")) {
                    return Err(self.odd(what, &format!("the wrong range ({range:?})")));
                }
                start
            }
            StatusCode::OK => 0,
            status if same_place(&whence, &self.home) => {
                self.ok(&response, what)?;
                return Err(self.odd(what, &format!("status {status}")));
            }
            status => {
                return Err(self.odd(what, &format!("a redirect to {}, which gave status {status}", place(&whence))));
            }
        };
        Ok((response.into_body(), skipped))
    }

    /// Sends the request and follows redirects; a HEAD stops at the door of another host.
    fn follow(&self, method: &Method, path: &str, start: u64, what: &str) -> Result<(Response<Body>, Uri), HubError> {
        let mut at: Uri =
            format!("{}{path}", self.options.endpoint).parse().map_err(|_| self.odd(what, "a bad URL"))?;
        for _ in 0..=MOST_REDIRECTS {
            let mut request = Request::builder().method(method).uri(&at);
            if let Some(token) = self.options.token.as_ref().filter(|_| same_place(&at, &self.home)) {
                request = request.header("authorization", token.bearer());
            }
            if start > 0 {
                request = request.header("range", format!("bytes={start}-"));
            }
            let request = request
                .body(())
                .map_err(|_| HubError::Option("HF_TOKEN holds a character that no token has".to_owned()))?;
            let response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
            let Some(next) = header(&response, "location").filter(|_| response.status().is_redirection()) else {
                return Ok((response, at));
            };
            let next: Uri = match next.starts_with('/') && !next.starts_with("//") {
                true => format!("{}{next}", place(&at)).parse(),
                false => next.parse(),
            }
            .map_err(|_| self.odd(what, "a redirect to no URL"))?;
            match next.scheme_str() {
                Some("https") => {}
                Some("http") if at.scheme_str() == Some("http") => {}
                _ => return Err(self.odd(what, &format!("a redirect to {}, which is not safe", place(&next)))),
            }
            if method == Method::HEAD && !same_place(&next, &self.home) {
                return Ok((response, at));
            }
            at = next;
        }
        Err(self.odd(what, "too many redirects"))
    }

    fn ok(&self, response: &Response<Body>, what: &str) -> Result<(), HubError> {
        let what = what.to_owned();
        let code = header(response, "x-error-code").map(|code| format!(", {code}")).unwrap_or_default();
        match response.status().as_u16() {
            200..300 => Ok(()),
            status @ (401 | 403) => Err(HubError::Refused { what, status, code }),
            404 => Err(HubError::NotFound { what, code }),
            status => Err(self.odd(&what, &format!("status {status}"))),
        }
    }

    fn odd(&self, what: &str, why: &str) -> HubError {
        HubError::Answer { endpoint: self.options.endpoint.clone(), what: what.to_owned(), why: why.to_owned() }
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> HubError {
        HubError::Unreachable { endpoint: self.options.endpoint.clone(), why: error.to_string() }
    }
}

fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// Scheme, host and port: who gets the token.
fn same_place(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    a.scheme() == b.scheme()
        && a.host().is_some_and(|host| b.host().is_some_and(|other| host.eq_ignore_ascii_case(other)))
        && port(a) == port(b)
}

/// A URL up to its path. What follows may hold a signature, which is nobody's business in a message.
fn place(uri: &Uri) -> String {
    format!("{}://{}", uri.scheme_str().unwrap_or("?"), uri.authority().map_or("?", |a| a.as_str()))
}
