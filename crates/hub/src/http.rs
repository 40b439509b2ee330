//! A small HTTP client for one hub. It follows redirects by hand, so that the token never leaves
//! the endpoint's host; every request has a time-out; and it distinguishes a missing file from a
//! forbidden one.

use std::io::Read;
use std::net::IpAddr;

use ureq::http::{Method, Request, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

use super::{HubError, Options};

/// A hub sends one redirect; a CDN perhaps another.
const MAX_REDIRECTS: usize = 5;
/// A repository's file list is far shorter.
const INFO_LIMIT: u64 = 32 << 20;

pub(super) struct Client<'a> {
    agent: Agent,
    options: &'a Options,
    endpoint: Uri,
}

/// The hub's metadata of a file, from a HEAD request.
#[derive(Debug)]
pub(super) struct Head {
    /// Also the name of its blob in the cache.
    pub(super) etag: String,
    pub(super) size: Option<u64>,
}

impl Head {
    /// The ETag of a large file is its sha256; that of a small one is git's sha1, which also covers
    /// a header.
    pub(super) fn sha256(&self) -> Option<&str> {
        (self.etag.len() == 64 && self.etag.bytes().all(|b| b.is_ascii_hexdigit())).then_some(&self.etag)
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(options: &'a Options) -> Result<Self, HubError> {
        let invalid =
            |why: &str| HubError::Option(format!("the hub endpoint {} {why}; check HF_ENDPOINT", options.endpoint));
        let endpoint: Uri = options.endpoint.parse().map_err(|_| invalid("is not a URL"))?;
        if !matches!(endpoint.scheme_str(), Some("http" | "https")) {
            return Err(invalid("must begin with https:// or http://"));
        }
        if endpoint.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(HubError::Option(
                "the hub endpoint (HF_ENDPOINT) contains a password; use HF_TOKEN instead".to_owned(),
            ));
        }
        let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
        let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let timeouts = options.timeouts;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(if local { None } else { Proxy::try_from_env() })
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent(concat!("sconce/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(timeouts.connect))
            .timeout_connect(Some(timeouts.connect))
            .timeout_recv_response(Some(timeouts.idle))
            .timeout_per_read(Some(timeouts.idle))
            .timeout_per_write(Some(timeouts.idle))
            .build()
            .new_agent();
        Ok(Self { agent, options, endpoint })
    }

    /// Gets JSON from `path` of the hub's API.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, path: &str, what: &str) -> Result<T, HubError> {
        let (response, _) = self.follow(&Method::GET, path, 0, what)?;
        self.ok(&response, what)?;
        let mut text = Vec::new();
        response.into_body().into_reader().take(INFO_LIMIT).read_to_end(&mut text).map_err(|e| self.unreachable(&e))?;
        serde_json::from_slice(&text).map_err(|error| self.bad_answer(what, &format!("unexpected JSON ({error})")))
    }

    /// The metadata of the file at `path`, from the hub itself, not from its CDN.
    pub(super) fn head(&self, path: &str, what: &str) -> Result<Head, HubError> {
        let (response, _) = self.follow(&Method::HEAD, path, 0, what)?;
        if !response.status().is_redirection() {
            self.ok(&response, what)?;
        }
        let etag = header(&response, "x-linked-etag").or(header(&response, "etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        // The ETag becomes a file name.
        let is_safe = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if etag.is_empty() || etag.len() > 128 || !is_safe {
            return Err(self.bad_answer(what, "no usable ETag"));
        }
        // The content-length of a redirect is not that of the file.
        let length = if response.status().is_success() { header(&response, "content-length") } else { None };
        let size = header(&response, "x-linked-size").or(length).and_then(|size| size.parse().ok());
        Ok(Head { etag: etag.to_owned(), size })
    }

    /// The bytes of the file at `path` from `start` on, after redirects. Also returns how many
    /// bytes precede the body: 0 if the server does not support ranges.
    pub(super) fn bytes(&self, path: &str, start: u64, what: &str) -> Result<(Body, u64), HubError> {
        let (response, url) = self.follow(&Method::GET, path, start, what)?;
        let skipped = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = header(&response, "content-range").unwrap_or_default();
                if !range.starts_with(&format!("bytes {start}-")) {
                    return Err(self.bad_answer(what, &format!("the wrong range ({range:?})")));
                }
                start
            }
            StatusCode::OK => 0,
            status if same_origin(&url, &self.endpoint) => {
                self.ok(&response, what)?;
                return Err(self.bad_answer(what, &format!("status {status}")));
            }
            status => {
                return Err(
                    self.bad_answer(what, &format!("a redirect to {}, which gave status {status}", origin(&url)))
                );
            }
        };
        Ok((response.into_body(), skipped))
    }

    /// Sends the request and follows redirects. A HEAD does not follow them to another host.
    fn follow(&self, method: &Method, path: &str, start: u64, what: &str) -> Result<(Response<Body>, Uri), HubError> {
        let mut at: Uri =
            format!("{}{path}", self.options.endpoint).parse().map_err(|_| self.bad_answer(what, "a bad URL"))?;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::builder().method(method).uri(&at);
            if let Some(token) = self.options.token.as_ref().filter(|_| same_origin(&at, &self.endpoint)) {
                request = request.header("authorization", token.bearer());
            }
            if start > 0 {
                request = request.header("range", format!("bytes={start}-"));
            }
            let request = request.body(()).map_err(|_| {
                HubError::Option("HF_TOKEN holds a character that is not allowed in a token".to_owned())
            })?;
            let response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
            let Some(next) = header(&response, "location").filter(|_| response.status().is_redirection()) else {
                return Ok((response, at));
            };
            let next: Uri = match next.starts_with('/') && !next.starts_with("//") {
                true => format!("{}{next}", origin(&at)).parse(),
                false => next.parse(),
            }
            .map_err(|_| self.bad_answer(what, "a redirect to no URL"))?;
            match next.scheme_str() {
                Some("https") => {}
                Some("http") if at.scheme_str() == Some("http") => {}
                _ => return Err(self.bad_answer(what, &format!("a redirect to {}, which is not safe", origin(&next)))),
            }
            if method == Method::HEAD && !same_origin(&next, &self.endpoint) {
                return Ok((response, at));
            }
            at = next;
        }
        Err(self.bad_answer(what, "too many redirects"))
    }

    fn ok(&self, response: &Response<Body>, what: &str) -> Result<(), HubError> {
        let what = what.to_owned();
        let code = header(response, "x-error-code").map(|code| format!(", {code}")).unwrap_or_default();
        match response.status().as_u16() {
            200..300 => Ok(()),
            status @ (401 | 403) => Err(HubError::Refused { what, status, code }),
            404 => Err(HubError::NotFound { what, code }),
            status => Err(self.bad_answer(&what, &format!("status {status}"))),
        }
    }

    fn bad_answer(&self, what: &str, why: &str) -> HubError {
        HubError::Answer { endpoint: self.options.endpoint.clone(), what: what.to_owned(), why: why.to_owned() }
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> HubError {
        HubError::Unreachable { endpoint: self.options.endpoint.clone(), why: error.to_string() }
    }
}

fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// Whether scheme, host and port are equal: the token is sent only to that origin.
fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    a.scheme() == b.scheme()
        && a.host().is_some_and(|host| b.host().is_some_and(|other| host.eq_ignore_ascii_case(other)))
        && port(a) == port(b)
}

/// A URL without its path and query, which may hold a signature and must not appear in messages.
fn origin(uri: &Uri) -> String {
    format!("{}://{}", uri.scheme_str().unwrap_or("?"), uri.authority().map_or("?", |a| a.as_str()))
}
