//! From a configuration to a manager that listens.

use crate::config::Config;
use crate::disk::{DiskError, Keeper, State};
use crate::http::{self, Peer};
use crate::manager::{Manager, random};
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

/// Files that are open for other things than requests: logs, pipes, what the runtime needs.
const OTHER_FILES: usize = 128;
/// The first bytes of a connection that speaks HTTP/2.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long answers that are under way may take when the manager ends.
const DRAIN: Duration = Duration::from_secs(30);

/// Why a manager did not come to be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its place is taken, or not to be had.
    #[error("cannot listen at {at}: {why}")]
    Listen {
        /// Where.
        at: String,
        /// Why not.
        why: std::io::Error,
    },
    /// Its files are not to be had.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A manager that listens.
pub struct Pool {
    manager: Arc<Manager>,
    listener: TcpListener,
    address: SocketAddr,
    /// Connections at once.
    most: usize,
    left: Vec<crate::core::Record>,
    keeping: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Pool {
    /// Takes its directory and its port. Nothing runs yet.
    pub async fn bind(config: Config) -> Result<Pool, Error> {
        let (keeper, State { token, workers, .. }) = Keeper::open(&config.state)?;
        let (host, port) = (config.hostname.as_str(), config.port);
        let failed = |why| Error::Listen { at: format!("{host} port {port}"), why };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // Workers of an earlier manager know its token. A new one is on disk before any worker has it: a manager that comes back
        // without it would not know them, nor they it.
        let token = match token.is_empty() {
            true => {
                let token = random(32);
                keeper.save_now(State::new(token.clone(), workers.clone())).await;
                token
            }
            false => token,
        };
        let (end, ended) = oneshot::channel();
        let keeping = tokio::spawn(keeper.clone().run(ended));
        // A request takes two files, one towards its client and one towards its worker.
        let files = process::raise_files().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let most = (files.saturating_sub(OTHER_FILES) / 2).min(config.max_connections).clamp(1, Semaphore::MAX_PERMITS);
        let manager = Manager::new(config, keeper, token, address);
        Ok(Pool { manager, listener, address, most, left: workers, keeping, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Manages and answers until `stop`; then ends its workers too, unless it was told to keep them. `now` cuts that short.
    pub async fn run(self, stop: impl Future<Output = ()>, now: impl Future<Output = ()>) -> Result<(), Error> {
        let Pool { manager, listener, address, most, left, keeping, end } = self;
        tracing::info!("listening at http://{address}");
        let router = http::router(&manager);
        let graceful = GracefulShutdown::new();
        let ticking = tokio::spawn(manager.clone().run());
        // Before anybody is answered, or they would be told that there are no models. Who comes meanwhile waits in the system's
        // queue.
        manager.begin(left).await;
        let looking = tokio::spawn(manager.clone().look());
        let (connections, patience) = (Arc::new(Semaphore::new(most)), manager.config.patience);
        // Dropped at the end: who has not said anything by then is not waited for.
        let (open, opened) = watch::channel(());
        tokio::pin!(stop, now);
        loop {
            // Taken before accepting: who comes beyond the most waits in the system's queue.
            let place = tokio::select! {
                place = connections.clone().acquire_owned() => place,
                () = &mut stop => break,
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, from)) => {
                    // Tokens are small and should go at once.
                    let _ = stream.set_nodelay(true);
                    let (router, watcher, mut opened) = (router.clone(), graceful.watcher(), opened.clone());
                    tokio::spawn(async move {
                        let _place = place;
                        let speaks = tokio::select! {
                            speaks = speaks(&stream, patience) => speaks,
                            _ = opened.changed() => false,
                        };
                        if !speaks {
                            return;
                        }
                        let peer = Peer::new(from);
                        let watched = watcher.watch(connection(TokioIo::new(stream), router, peer.clone(), patience));
                        tokio::select! {
                            ended = watched => if let Err(e) = ended {
                                tracing::debug!("a connection ended: {e}");
                            },
                            () = peer.hung_up() => tracing::debug!("a client that does not read was hung up on"),
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
        drop((listener, open));
        looking.abort();
        let ending = async {
            let drained = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
            if drained.is_err() {
                tracing::warn!("ended with requests unanswered");
            }
            if !manager.config.keep_workers {
                tracing::info!("stopping all workers");
                manager.stop_all().await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = &mut now => tracing::warn!("ending at once; workers that still run are found by the next manager"),
        }
        ticking.abort();
        drop(end);
        let _ = keeping.await;
        Ok(())
    }
}

/// Whether a client says enough in time to tell which HTTP it speaks. Until then nobody else looks to the time; from then on hyper does.
async fn speaks(stream: &TcpStream, patience: Duration) -> bool {
    let enough = async {
        let mut head = [0; PREFACE.len()];
        loop {
            match stream.peek(&mut head).await {
                Ok(0) | Err(_) => return false,
                Ok(n) if n == PREFACE.len() || head[..n] != PREFACE[..n] => return true,
                // Part of it. What is there is seen again at once, so that there is nothing to wait for but time.
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(patience, enough).await.unwrap_or(false)
}

type Io = TokioIo<TcpStream>;

/// HTTP/1 or HTTP/2, as the client's first bytes say. Requests are told who is at the other end.
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
