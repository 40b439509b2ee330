//! The protocol over HTTP (streamable HTTP), for programs of this machine.
//!
//! There are no sessions: a request has all that its answer needs, so a client leaves nothing behind
//! in the server. Each request passes the guards in [`Guard::refusal`] before its body is read.

use super::{IndexServer, MAX_MESSAGE};
use crate::Failure;
use crate::report::Report;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use sconce_api::hosts::AllowedHosts;
use sconce_server::{Secret, Stop, TimeoutStream, presented_key};
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The only address: other machines cannot reach the server.
const ADDRESS: &str = "127.0.0.1";
/// The only path.
const PATH: &str = "/mcp";
/// The most open connections; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may be silent, a body may take to arrive, or a client not read.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest request. The first search may wait for a model to be downloaded.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// How long running requests may go on after the signal to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How to listen, and to whom.
pub(crate) struct HttpOptions {
    /// 0 takes any free port.
    pub(crate) port: u16,
    /// Keys, one of which a request must have; none: no request needs one.
    pub(crate) api_keys: Vec<Secret>,
    /// Host names of this server besides those of loopback.
    pub(crate) allowed_hosts: Vec<String>,
}

type ResponseBody = BoxBody<Bytes, Infallible>;

/// The protocol's handler behind the guards.
struct Guard {
    service: StreamableHttpService<IndexServer, NeverSessionManager>,
    api_keys: Vec<Secret>,
    allowed_hosts: AllowedHosts,
}

/// Why a request is refused.
#[derive(Debug, PartialEq)]
struct Refusal {
    status: StatusCode,
    what: String,
}

/// Serves until a signal to stop.
pub(crate) async fn serve_http(server: IndexServer, options: HttpOptions, report: &Report) -> Result<(), Failure> {
    let stop = Stop::on_signals();
    let HttpOptions { port, api_keys, allowed_hosts } = options;
    let failed = |e: std::io::Error| format!("cannot listen at {ADDRESS}:{port}: {e}");
    let listener = TcpListener::bind((ADDRESS, port)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let guard = Arc::new(Guard::new(server, api_keys, allowed_hosts));
    report.info(&format!("listening at http://{address}{PATH}"));

    let (graceful, connections) = (GracefulShutdown::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    loop {
        // Taken before accepting: connections over the limit wait in the listen queue.
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit,
            () = stop.drained() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.drained() => break,
        };
        let Ok((stream, _)) = accepted else {
            // Usually too many open files; connections may close soon.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let guard = guard.clone();
        let service = service_fn(move |request| {
            let guard = guard.clone();
            async move { Ok::<_, Infallible>(guard.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(SILENCE)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(TimeoutStream::new(stream, SILENCE)), service);
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            // A connection that breaks concerns its client alone.
            let _ = watched.await;
        });
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = stop.forced() => {}
        () = tokio::time::sleep(DRAIN_TIMEOUT) => {}
    }
    Ok(())
}

impl Guard {
    fn new(server: IndexServer, api_keys: Vec<Secret>, allowed_hosts: Vec<String>) -> Guard {
        // Its own check of hosts does not know our flags.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(MAX_MESSAGE)
            .disable_allowed_hosts();
        let service = StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
        Guard { service, api_keys, allowed_hosts: AllowedHosts::Only(allowed_hosts) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let handled = async {
            if let Some(refusal) = self.refusal(request.headers(), request.uri().path()) {
                return Err(refusal);
            }
            let (head, body) = request.into_parts();
            let request = Request::from_parts(head, Full::new(whole_body(body).await?));
            Ok(self.service.handle(request).await)
        };
        let too_long = || {
            let what = format!("the answer took longer than {} seconds", REQUEST_TIMEOUT.as_secs());
            Refusal { status: StatusCode::GATEWAY_TIMEOUT, what }
        };
        let answered = tokio::time::timeout(REQUEST_TIMEOUT, handled).await;
        answered.map_err(|_| too_long()).flatten().unwrap_or_else(Refusal::response)
    }

    /// Why a request is refused, if it is. A web page may give its own name the address of this
    /// machine (DNS rebinding), so the name counts, and the page that a request comes from, also
    /// where a key is required.
    fn refusal(&self, headers: &HeaderMap, path: &str) -> Option<Refusal> {
        let refuse = |status, what: String| Some(Refusal { status, what });
        for host in headers.get_all(HOST) {
            if let Some(what) = self.allowed_hosts.refusal(host.to_str().ok().or(Some(""))) {
                return refuse(StatusCode::FORBIDDEN, what);
            }
        }
        if !headers.get_all(ORIGIN).iter().all(|origin| self.allows_origin(origin)) {
            let what = "this server does not answer to web pages of other machines; if the page is yours, add its host \
                        with --allowed-hosts";
            return refuse(StatusCode::FORBIDDEN, what.into());
        }
        if !self.api_keys.is_empty() {
            // Every key is compared, so that timing does not reveal which one was close.
            let presented = presented_key(headers);
            let is_known = |key: &str| self.api_keys.iter().fold(false, |found, known| found | known.is(key));
            match presented.map(is_known) {
                Some(true) => {}
                Some(false) => return refuse(StatusCode::UNAUTHORIZED, "wrong API key".into()),
                None => {
                    let what = "missing API key; send `Authorization: Bearer KEY`";
                    return refuse(StatusCode::UNAUTHORIZED, what.into());
                }
            }
        }
        match path {
            PATH => None,
            _ => refuse(StatusCode::NOT_FOUND, format!("there is nothing here; the server is at {PATH}")),
        }
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        // `null`, the origin of sandboxed pages and files, has no host.
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        host.is_some_and(|host| self.allowed_hosts.refusal(Some(host)).is_none())
    }
}

/// The bytes of a body, bounded in number and time.
async fn whole_body(body: Incoming) -> Result<Bytes, Refusal> {
    let refusal = |status, what: String| Refusal { status, what };
    let read = tokio::time::timeout(SILENCE, Limited::new(body, MAX_MESSAGE).collect()).await;
    let read = read.map_err(|_| refusal(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".into()))?;
    read.map(|body| body.to_bytes()).map_err(|e| match e.is::<LengthLimitError>() {
        true => refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {MAX_MESSAGE} bytes")),
        false => refusal(StatusCode::BAD_REQUEST, format!("cannot read the body: {e}")),
    })
}

impl Refusal {
    /// A JSON-RPC error without an id.
    fn response(self) -> Response<ResponseBody> {
        let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": self.what}});
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
