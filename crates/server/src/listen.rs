//! The listener: accepts connections, bounded in number and time, and hands them to the router.

use crate::app::App;
use crate::config::{Config, Listen};
use crate::model_manager::{ModelManager, ModelSpec};
use crate::stop::Stop;
use crate::timeout_stream::TimeoutStream;
use crate::{batches, dialect, error::Fault};
use axum::Router;
use axum::body::Body;
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use sconce_engine::LoadOptions;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

/// How long batches, and the indexing of vector stores, may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often idle models are looked for, at least.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// How often files and responses whose time has passed are deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Why a server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is in use or cannot be bound.
    #[error("cannot listen at {at}: {why}")]
    Listen {
        /// The address.
        at: String,
        /// The system's error.
        why: io::Error,
    },
    /// Invalid configuration.
    #[error("{0}")]
    Config(String),
    /// Every model failed to load.
    #[error("no model can be served: {0}")]
    Models(String),
}

/// Address of a bound server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// TCP address.
    Tcp {
        /// `http` or `https`.
        scheme: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Tcp { scheme, address } => write!(f, "{scheme}://{address}"),
            Bound::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound server that is loading its models.
pub struct Server {
    /// State shared by the handlers.
    pub app: Arc<App>,
    bound: Bound,
    /// At least one.
    listeners: Vec<Listener>,
    router: Router,
}

enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Server {
    /// Binds the listener and starts loading `models`. Requests before they are ready get status
    /// 503 with the load progress.
    pub async fn bind(config: Config, models: Vec<ModelSpec>, stop: Stop) -> Result<Server, Error> {
        let (first, bound) = listen(&config).await?;
        let mut listeners = vec![first];
        listeners.extend(listen_further(&config, &bound).await?);
        // Models loaded at run time use the first model's options.
        let defaults = match models.first() {
            Some(first) => first.load.clone().with_chat_template(None),
            None => LoadOptions::from_env().map_err(|e| Error::Config(e.to_string()))?,
        };
        let manager = ModelManager::new(config.memory_budget, defaults);
        for spec in models {
            manager.register(spec).map_err(|Fault { message, .. }| Error::Config(message))?;
        }
        let app = App::new(config, manager, stop).map_err(Error::Config)?;
        let router = dialect::router(&app);
        Ok(Server { app, bound, listeners, router })
    }

    /// The bound address; the first, if there are several.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Serves until `Stop` is signalled, then drains.
    pub async fn run(self) -> Result<(), Error> {
        let Server { app, bound, mut listeners, router } = self;
        tracing::info!("listening at {bound}");
        for host in &app.config.more_hosts {
            tracing::info!("listening at {host} on the same port");
        }
        let load_failure = Arc::new(Mutex::new(None));
        let watching = tokio::spawn(watch(app.clone(), load_failure.clone()));
        let sweeping = tokio::spawn(sweep(app.clone()));
        let batching = tokio::spawn(batches::run(app.clone(), dialect::background_router(&app)));
        let reporting =
            app.member.clone().map(|m| tokio::spawn(dialect::worker::report(app.clone(), m, bound.clone())));
        let (graceful, stop) = (GracefulShutdown::new(), app.stop.clone());
        let connections = Arc::new(Semaphore::new(app.config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        loop {
            // Taken before accepting: connections over the limit wait in the listen queue.
            let permit = tokio::select! {
                permit = connections.clone().acquire_owned() => permit,
                () = until_closed(&app) => break,
            };
            let accepted = tokio::select! {
                accepted = accept_any(&mut listeners) => accepted,
                () = until_closed(&app) => break,
            };
            match accepted {
                Ok(accepted) => {
                    let (watcher, router, app) = (graceful.watcher(), router.clone(), app.clone());
                    tokio::spawn(async move {
                        let _permit = permit;
                        // In the connection's own task: a slow handshake must not delay others.
                        let accepted = match with_tls(accepted, &app.config).await {
                            Ok(accepted) => accepted,
                            Err(e) => return tracing::debug!("no TLS connection: {e}"),
                        };
                        if let Err(e) = watcher.watch(connection(accepted, &router, &app.config)).await {
                            tracing::debug!("connection closed: {e}");
                        }
                    });
                }
                Err(e) => {
                    // Usually too many open files. Retrying at once would only burn CPU;
                    // connections may close soon.
                    tracing::warn!("cannot accept a connection: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listeners);
        watching.abort();
        sweeping.abort();
        reporting.inspect(|task| task.abort());
        if let Bound::Unix(path) = &bound {
            let _ = std::fs::remove_file(path);
        }
        let drained = tokio::select! {
            () = graceful.shutdown() => true,
            () = stop.forced() => false,
            () = tokio::time::sleep(app.config.drain_timeout) => false,
        };
        if drained {
            tracing::info!("drained");
            if let Some(traces) = app.config.traces.clone() {
                // Flushing waits for the collector, so it runs on a blocking thread.
                let _ = tokio::task::spawn_blocking(move || traces.end()).await;
            }
        } else {
            let limit = app.config.drain_timeout.as_secs();
            tracing::warn!("stopped before all requests were answered: {limit} s passed, or a second signal came");
            // Dropping the last owner of a model waits for its thread; a hanging model must not
            // block the exit.
            std::mem::forget(app.clone());
        }
        // Batches end when draining begins. The folder is theirs until they have.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, batching).await;
        // A file whose parser hangs must not block the exit.
        let closing = app.clone();
        let closed = tokio::task::spawn_blocking(move || closing.close_storage());
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
        match load_failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(why) => Err(Error::Models(why)),
            None => Ok(()),
        }
    }
}

/// Waits until the listener must close: when draining begins. A worker listens until its jobs are
/// done and their events collected, so that the pool can read its state and cancel jobs.
async fn until_closed(app: &App) {
    app.stop.drained().await;
    let Some(member) = &app.member else { return };
    let idle = async {
        while app.free_permits() < app.permits() || member.has_waiting_jobs() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = idle => {}
        () = app.stop.forced() => {}
        () = tokio::time::sleep(app.config.drain_timeout) => {}
    }
}

/// Deletes files, batches and responses whose time has passed.
async fn sweep(app: Arc<App>) {
    loop {
        let app = app.clone();
        // A panic was logged when it happened.
        let _ = tokio::task::spawn_blocking(move || app.delete_expired()).await;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

/// Ends a server whose models all failed to load; unloads idle models.
async fn watch(app: Arc<App>, load_failure: Arc<Mutex<Option<String>>>) {
    app.models.settled().await;
    if let Some(why) = app.models.all_failed() {
        *load_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        return app.stop.drain();
    }
    // Without a time-out of the server, a request may still set one for its model.
    let limit = app.config.idle_timeout;
    let interval = limit.map_or(IDLE_EVERY, |limit| (limit / 4).clamp(Duration::from_millis(10), IDLE_EVERY));
    loop {
        tokio::time::sleep(interval).await;
        app.models.unload_idle(limit);
    }
}

/// Listens at the further hosts of the configuration, on the port of the first.
async fn listen_further(config: &Config, first: &Bound) -> Result<Vec<Listener>, Error> {
    let port = match first {
        Bound::Tcp { address, .. } => address.port(),
        Bound::Unix(_) if config.more_hosts.is_empty() => return Ok(Vec::new()),
        Bound::Unix(_) => return Err(Error::Config("a server at a Unix socket has no further addresses".into())),
    };
    let mut listeners = Vec::new();
    for host in &config.more_hosts {
        let failed = |why| Error::Listen { at: format!("{host}:{port}"), why };
        listeners.push(Listener::Tcp(TcpListener::bind((host.as_str(), port)).await.map_err(failed)?));
    }
    Ok(listeners)
}

/// The next connection to any of the listeners.
async fn accept_any(listeners: &mut [Listener]) -> io::Result<AcceptedStream> {
    // A busy listener must not hide the others: each comes first in turn.
    listeners.rotate_left(usize::from(!listeners.is_empty()));
    let accepting = listeners.iter().map(|listener| Box::pin(accept(listener)));
    futures_util::future::select_all(accepting).await.0
}

async fn listen(config: &Config) -> Result<(Listener, Bound), Error> {
    match &config.listen {
        Listen::Tcp { host, port } => {
            let failed = |why| Error::Listen { at: format!("{host}:{port}"), why };
            let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            Ok((Listener::Tcp(listener), Bound::Tcp { scheme, address }))
        }
        #[cfg(unix)]
        Listen::Unix(path) => {
            use std::os::unix::fs::FileTypeExt;
            let failed = |why| Error::Listen { at: path.display().to_string(), why };
            // A socket without a listener is left over from a killed server.
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if is_socket && UnixStream::connect(path).await.is_err() {
                std::fs::remove_file(path).map_err(failed)?;
            }
            let listener = UnixListener::bind(path).map_err(failed)?;
            Ok((Listener::Unix(listener), Bound::Unix(path.clone())))
        }
        #[cfg(not(unix))]
        Listen::Unix(_) => Err(Error::Config("this system has no Unix sockets; listen on a TCP port".into())),
    }
}

/// A TCP or Unix stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl Stream for TcpStream {}
impl Stream for TlsStream<Box<dyn Stream>> {}
#[cfg(unix)]
impl Stream for UnixStream {}

/// An accepted stream and its peer.
struct AcceptedStream {
    stream: Box<dyn Stream>,
    peer: Peer,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Whether the peer is on this machine.
    pub(crate) local: bool,
}

async fn accept(listener: &Listener) -> io::Result<AcceptedStream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            // Responses are written whole; Nagle's algorithm would only delay them.
            stream.set_nodelay(true)?;
            Ok(AcceptedStream {
                stream: Box::new(stream),
                peer: Peer { local: address.ip().to_canonical().is_loopback() },
            })
        }
        #[cfg(unix)]
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            Ok(AcceptedStream { stream: Box::new(stream), peer: Peer { local: true } })
        }
    }
}

/// The stream, within TLS if the server has a certificate.
async fn with_tls(accepted: AcceptedStream, config: &Config) -> io::Result<AcceptedStream> {
    let Some(tls) = &config.tls else { return Ok(accepted) };
    let AcceptedStream { stream, peer } = accepted;
    Ok(AcceptedStream { stream: Box::new(tls.accept(stream).await?), peer })
}

type Io = TokioIo<TimeoutStream<Box<dyn Stream>>>;

/// The router for one connection; adds the peer to each request.
#[derive(Clone)]
struct Service {
    router: Router,
    peer: Peer,
}

impl hyper::service::Service<hyper::Request<Incoming>> for Service {
    type Response = hyper::Response<Body>;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer);
        // A router is always ready, so `poll_ready` is not needed.
        tower::Service::call(&mut self.router.clone(), request)
    }
}

/// Serves HTTP/1 or HTTP/2, depending on the client's first bytes.
fn connection(
    accepted: AcceptedStream,
    router: &Router,
    config: &Config,
) -> auto::Connection<'static, Io, Service, TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(config.silence).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(config.silence / 2)
        .keep_alive_timeout(config.silence / 2);
    let service = Service { router: router.clone(), peer: accepted.peer };
    let io = TokioIo::new(TimeoutStream::new(accepted.stream, config.silence));
    builder.serve_connection(io, service).into_owned()
}
