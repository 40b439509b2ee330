//! Listening: from a socket to the router, with bounds on how long and how many.

use crate::app::App;
use crate::config::{Config, Listen};
use crate::house::{House, ModelSpec};
use crate::patient::Patient;
use crate::stop::Stop;
use crate::{dialect, error::Fault};
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

/// Why a server did not come to be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its place is taken, or not to be had.
    #[error("cannot listen at {at}: {why}")]
    Listen {
        /// Where.
        at: String,
        /// Why not.
        why: io::Error,
    },
    /// Something that was set cannot be.
    #[error("{0}")]
    Config(String),
    /// No model could be loaded.
    #[error("no model can be served: {0}")]
    Models(String),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// An address.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Tcp(address) => write!(f, "http://{address}"),
            Bound::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A server that listens, and is loading its models.
pub struct Server {
    /// What its handlers share.
    pub app: Arc<App>,
    bound: Bound,
    listener: Listener,
    router: Router,
}

enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Server {
    /// Listens, and begins to load `models`. Whoever asks before they are there is told how far they are.
    pub async fn bind(config: Config, models: Vec<ModelSpec>, stop: Stop) -> Result<Server, Error> {
        let (listener, bound) = listen(&config.listen).await?;
        // What is asked for at run time is loaded as the first was.
        let defaults = match models.first() {
            Some(first) => first.load.clone(),
            None => LoadOptions::from_env().map_err(|e| Error::Config(e.to_string()))?,
        };
        let house = House::new(config.memory_budget, defaults);
        for spec in models {
            house.furnish(spec).map_err(|Fault { message, .. }| Error::Config(message))?;
        }
        let app = App::new(config, house, stop);
        let router = dialect::router(&app);
        Ok(Server { app, bound, listener, router })
    }

    /// Where it listens.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Answers until it is told to stop, and then until what runs is done.
    pub async fn run(self) -> Result<(), Error> {
        let Server { app, bound, listener, router } = self;
        tracing::info!("listening at {bound}");
        let hopeless = Arc::new(Mutex::new(None));
        let watching = tokio::spawn(watch(app.clone(), hopeless.clone()));
        let reporting =
            app.member.clone().map(|m| tokio::spawn(dialect::worker::report(app.clone(), m, bound.clone())));
        let (graceful, stop) = (GracefulShutdown::new(), app.stop.clone());
        let connections = Arc::new(Semaphore::new(app.config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        loop {
            // Taken before accepting: who comes beyond the most waits in the system's queue.
            let place = tokio::select! {
                place = connections.clone().acquire_owned() => place,
                () = closing(&app) => break,
            };
            let accepted = tokio::select! {
                accepted = accept(&listener) => accepted,
                () = closing(&app) => break,
            };
            match accepted {
                Ok(stream) => {
                    let connection = connection(stream, &router, &app.config);
                    let watched = graceful.watch(connection);
                    tokio::spawn(async move {
                        let _place = place;
                        if let Err(e) = watched.await {
                            tracing::debug!("a connection ended: {e}");
                        }
                    });
                }
                Err(e) => {
                    // Mostly too many open files. Others may go soon; trying at once would only burn the processor.
                    tracing::warn!("cannot accept a connection: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        watching.abort();
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
                // It waits for the collector, on a thread that may.
                let _ = tokio::task::spawn_blocking(move || traces.end()).await;
            }
        } else {
            tracing::warn!("ended with requests unanswered");
            // Models end with their last owner, who waits for them; one that hangs must not keep us.
            std::mem::forget(app.clone());
        }
        match hopeless.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(why) => Err(Error::Models(why)),
            None => Ok(()),
        }
    }
}

/// Waits until nobody new is let in: when told to drain; a worker goes on listening until its jobs are done, for a pool asks it how
/// it is, and may cancel them.
async fn closing(app: &App) {
    app.stop.drained().await;
    if app.member.is_none() {
        return;
    }
    let idle = async {
        while app.free_permits() < app.permits() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = idle => {}
        () = app.stop.forced() => {}
        () = tokio::time::sleep(app.config.drain_timeout) => {}
    }
}

/// Ends a server whose models all failed to load; lets models rest that nobody uses.
async fn watch(app: Arc<App>, hopeless: Arc<Mutex<Option<String>>>) {
    app.house.settled().await;
    if let Some(why) = app.house.hopeless() {
        *hopeless.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        return app.stop.drain();
    }
    let Some(idle) = app.config.idle_timeout else { return };
    let often = (idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(5));
    loop {
        tokio::time::sleep(often).await;
        app.house.sweep(idle);
    }
}

async fn listen(at: &Listen) -> Result<(Listener, Bound), Error> {
    match at {
        Listen::Tcp { host, port } => {
            let failed = |why| Error::Listen { at: format!("{host}:{port}"), why };
            let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener), Bound::Tcp(address)))
        }
        #[cfg(unix)]
        Listen::Unix(path) => {
            use std::os::unix::fs::FileTypeExt;
            let failed = |why| Error::Listen { at: path.display().to_string(), why };
            // A socket that nobody listens at is what a server left that was killed.
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if is_socket && UnixStream::connect(path).await.is_err() {
                std::fs::remove_file(path).map_err(failed)?;
            }
            let listener = UnixListener::bind(path).map_err(failed)?;
            Ok((Listener::Unix(listener), Bound::Unix(path.clone())))
        }
        #[cfg(not(unix))]
        Listen::Unix(_) => Err(Error::Config("there are no unix sockets on this system".into())),
    }
}

/// Either kind of stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl Stream for TcpStream {}
#[cfg(unix)]
impl Stream for UnixStream {}

/// Someone who came, and whether from this machine.
struct Arrived {
    stream: Box<dyn Stream>,
    peer: Peer,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Whether that is this machine.
    pub(crate) local: bool,
}

async fn accept(listener: &Listener) -> io::Result<Arrived> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            // Answers are written whole; waiting to fill a packet would only delay them.
            stream.set_nodelay(true)?;
            Ok(Arrived { stream: Box::new(stream), peer: Peer { local: address.ip().to_canonical().is_loopback() } })
        }
        #[cfg(unix)]
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            Ok(Arrived { stream: Box::new(stream), peer: Peer { local: true } })
        }
    }
}

type Io = TokioIo<Patient<Box<dyn Stream>>>;

/// The router for one connection: requests are told who is at its other end.
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
        // A router is always ready.
        tower::Service::call(&mut self.router.clone(), request)
    }
}

/// HTTP/1 or HTTP/2, as the client's first bytes say.
fn connection(
    arrived: Arrived,
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
    let service = Service { router: router.clone(), peer: arrived.peer };
    let io = TokioIo::new(Patient::new(arrived.stream, config.silence));
    builder.serve_connection(io, service).into_owned()
}
