//! Binds a manager, accepts its connections and shuts it down.

use crate::config::Config;
use crate::disk::{DiskError, State, StateStore};
use crate::http::{self, Peer};
use crate::ids::random_hex;
use crate::manager::Manager;
use crate::process;
use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

/// Open files besides connections: logs, pipes, the runtime's own.
const OTHER_FILES: usize = 128;
/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long running responses may take when the manager ends.
const DRAIN: Duration = Duration::from_secs(30);

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is taken or not available.
    #[error("cannot listen at {at}: {why}")]
    Listen {
        /// The address.
        at: String,
        /// The error.
        why: std::io::Error,
    },
    /// Its state directory cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A manager with a bound port.
pub struct Pool {
    manager: Arc<Manager>,
    listener: TcpListener,
    address: SocketAddr,
    /// Most connections at once.
    max_connections: usize,
    earlier: Vec<crate::core::Record>,
    drained: Vec<String>,
    store_task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Pool {
    /// Locks the state directory and binds the port. No worker runs yet.
    pub async fn bind(config: Config) -> Result<Pool, Error> {
        let (store, State { token, workers, drained, .. }) = StateStore::open(&config.state)?;
        let (host, port) = (config.hostname.as_str(), config.port);
        let failed = |why| Error::Listen { at: format!("{host} port {port}"), why };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // Workers of an earlier manager know its token. A new token is written to disk before any
        // worker gets it: without it, a restarted manager and its workers would refuse each other.
        let token = match token.is_empty() {
            true => {
                let token = random_hex(32);
                store.save_now(State::new(token.clone(), workers.clone(), drained.clone())).await;
                token
            }
            false => token,
        };
        let (end, ended) = oneshot::channel();
        let store_task = tokio::spawn(store.clone().run(ended));
        // A request takes two files, a connection to its client and one to its worker.
        let files = process::raise_file_limit().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let max_connections =
            (files.saturating_sub(OTHER_FILES) / 2).min(config.max_connections).clamp(1, Semaphore::MAX_PERMITS);
        let manager = Manager::new(config, store, token, address);
        Ok(Pool { manager, listener, address, max_connections, earlier: workers, drained, store_task, end })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Manages workers and answers requests until `stop`; then stops the workers too, unless
    /// `keep_workers` is set. `now` ends the shutdown at once.
    pub async fn run(self, stop: impl Future<Output = ()>, now: impl Future<Output = ()>) -> Result<(), Error> {
        let Pool { manager, listener, address, max_connections, earlier, drained, store_task, end } = self;
        tracing::info!("listening at http://{address}");
        let router = http::router(&manager);
        let graceful = GracefulShutdown::new();
        let ticking = tokio::spawn(manager.clone().tick_loop());
        // Restore before accepting connections: the first request would otherwise find no models.
        // Until then connections wait in the system's queue.
        manager.restore(earlier, &drained).await;
        let inspecting = tokio::spawn(manager.clone().inspect_loop());
        let (connections, client_timeout) = (Arc::new(Semaphore::new(max_connections)), manager.config.client_timeout);
        // Dropped at shutdown: connections that have sent nothing by then are closed.
        let (open, opened) = watch::channel(());
        tokio::pin!(stop, now);
        loop {
            // Acquired before accepting: further connections wait in the system's queue.
            let permit = tokio::select! {
                permit = connections.clone().acquire_owned() => permit,
                () = &mut stop => break,
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    // Tokens are small and must not wait for more data.
                    let _ = stream.set_nodelay(true);
                    let (router, watcher, mut opened) = (router.clone(), graceful.watcher(), opened.clone());
                    tokio::spawn(async move {
                        let _permit = permit;
                        let sends_request = tokio::select! {
                            sends_request = sends_request(&stream, client_timeout) => sends_request,
                            _ = opened.changed() => false,
                        };
                        if !sends_request {
                            return;
                        }
                        let peer = Peer::new(from);
                        let watched =
                            watcher.watch(connection(TokioIo::new(stream), router, peer.clone(), client_timeout));
                        tokio::select! {
                            ended = watched => if let Err(e) = ended {
                                tracing::debug!("a connection ended: {e}");
                            },
                            () = peer.hung_up() => tracing::debug!("closed the connection of a client that does not read"),
                        }
                    });
                }
                Err(e) => {
                    // Usually too many open files. Some may close soon; retrying at once would only
                    // use CPU time.
                    tracing::warn!("cannot accept a connection: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop((listener, open));
        inspecting.abort();
        let ending = async {
            let drained = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
            if drained.is_err() {
                tracing::warn!("shut down with requests unanswered");
            }
            if !manager.config.keep_workers {
                tracing::info!("stopping all workers");
                manager.stop_all().await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = &mut now => tracing::warn!("ending at once; the next manager adopts the workers that still run"),
        }
        ticking.abort();
        drop(end);
        let _ = store_task.await;
        Ok(())
    }
}

/// Whether a client sends enough within the time-out to tell HTTP/1 from HTTP/2. Hyper applies its
/// own time-outs only after that.
async fn sends_request(stream: &TcpStream, client_timeout: Duration) -> bool {
    let enough = async {
        let mut head = [0; PREFACE.len()];
        loop {
            match stream.peek(&mut head).await {
                Ok(0) | Err(_) => return false,
                Ok(n) if n == PREFACE.len() || head[..n] != PREFACE[..n] => return true,
                // A part of the preface. `peek` returns the same bytes at once, so only waiting
                // helps.
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(client_timeout, enough).await.unwrap_or(false)
}

type Io = TokioIo<TcpStream>;

/// Serves HTTP/1 or HTTP/2, by the client's first bytes. Every request gets the [`Peer`] of its
/// connection.
fn connection(
    io: Io,
    router: Router,
    peer: Peer,
    silence: Duration,
) -> impl GracefulConnection<Error = Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(silence).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(silence / 2)
        .keep_alive_timeout(silence / 2);
    let routed = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        routed.call(request)
    });
    builder.serve_connection(io, service).into_owned()
}
