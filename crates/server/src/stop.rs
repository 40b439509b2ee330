//! Shutdown signal: the first signal drains the server, the second ends it at once.

use tokio::sync::watch;

/// How urgently the server must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StopLevel {
    None,
    Drain,
    Now,
}

/// Signals a server to shut down. Clones share the signal.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<StopLevel>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(watch::Sender::new(StopLevel::None))
    }
}

impl Stop {
    /// A `Stop` that SIGTERM and SIGINT also trigger: the first drains, the second ends at once.
    /// Needs a Tokio runtime.
    pub fn on_signals() -> Stop {
        let stop = Stop::default();
        let signalled = stop.clone();
        // Not in the task, which runs later: until the handlers are there, a signal ends the process.
        let mut signals = Signals::listen();
        tokio::spawn(async move {
            signals.next().await;
            tracing::info!("draining: finishing running requests; a second signal stops at once");
            signalled.drain();
            signals.next().await;
            tracing::warn!("second signal: stopping at once");
            signalled.now();
        });
        stop
    }

    /// Drain: accept no new requests, finish running ones, end.
    pub fn drain(&self) {
        self.0.send_if_modified(|level| std::mem::replace(level, (*level).max(StopLevel::Drain)) < StopLevel::Drain);
    }

    /// End at once.
    pub fn now(&self) {
        self.0.send_replace(StopLevel::Now);
    }

    /// Whether shutdown was requested, by drain or at once.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= StopLevel::Drain
    }

    /// Waits until shutdown is requested.
    pub async fn drained(&self) {
        // `self` holds the sender, so the channel is open.
        let _ = self.0.subscribe().wait_for(|level| *level >= StopLevel::Drain).await;
    }

    /// Waits until the server must end at once.
    pub async fn forced(&self) {
        let _ = self.0.subscribe().wait_for(|level| *level >= StopLevel::Now).await;
    }
}

/// SIGTERM and SIGINT; `None` if their handlers cannot be installed.
#[cfg(unix)]
struct Signals(Option<[tokio::signal::unix::Signal; 2]>);

#[cfg(unix)]
impl Signals {
    fn listen() -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = signal(SignalKind::terminate());
        Signals(terminate.and_then(|terminate| Ok([terminate, signal(SignalKind::interrupt())?])).ok())
    }

    async fn next(&mut self) {
        match &mut self.0 {
            Some([terminate, interrupt]) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            None => std::future::pending().await,
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> Signals {
        Signals
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
