//! From a configuration to a manager that listens.

use crate::config::Config;
use crate::disk::{DiskError, Keeper, State};
use crate::http;
use crate::manager::{Manager, random};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a connection may be silent in the middle of a request's head.
const SILENCE: Duration = Duration::from_secs(60);
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
    left: Vec<crate::core::Record>,
    keeping: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Pool {
    /// Takes its directory and its port. Nothing runs yet.
    pub async fn bind(config: Config) -> Result<Pool, Error> {
        let (keeper, State { token, workers, .. }) = Keeper::open(&config.state)?;
        let at = format!("{}:{}", config.hostname, config.port);
        let failed = |why| Error::Listen { at: at.clone(), why };
        let listener = TcpListener::bind(&at).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // Workers of an earlier manager know its token.
        let token = if token.is_empty() { random(32) } else { token };
        let (end, ended) = oneshot::channel();
        let keeping = tokio::spawn(keeper.clone().run(ended));
        let manager = Manager::new(config, keeper, token, address.port());
        Ok(Pool { manager, listener, address, left: workers, keeping, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Manages and answers until `stop`; then ends its workers too, unless it was told to keep them. `now` cuts that short.
    pub async fn run(self, stop: impl Future<Output = ()>, now: impl Future<Output = ()>) -> Result<(), Error> {
        let Pool { manager, listener, address, left, keeping, end } = self;
        tracing::info!("listening at http://{address}");
        let router = http::router(&manager);
        let graceful = GracefulShutdown::new();
        let ticking = tokio::spawn(manager.clone().run());
        // Before anybody is answered, or they would be told that there are no models. Who comes meanwhile waits in the system's
        // queue.
        manager.begin(left).await;
        tokio::pin!(stop, now);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Tokens are small and should go at once.
                        let _ = stream.set_nodelay(true);
                        let watched = graceful.watch(connection(TokioIo::new(stream), &router));
                        tokio::spawn(async move {
                            if let Err(e) = watched.await {
                                tracing::debug!("a connection ended: {e}");
                            }
                        });
                    }
                    Err(e) => {
                        tracing::warn!("cannot accept a connection: {e}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        drop(listener);
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

type Io = TokioIo<tokio::net::TcpStream>;

fn connection(io: Io, router: &Router) -> auto::Connection<'static, Io, TowerToHyperService<Router>, TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(SILENCE / 2)
        .keep_alive_timeout(SILENCE / 2);
    builder.serve_connection(io, TowerToHyperService::new(router.clone())).into_owned()
}
