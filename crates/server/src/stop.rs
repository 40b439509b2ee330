//! When a server ends: first it finishes what runs, and if told again, it goes at once.

use tokio::sync::watch;

/// How much of a hurry there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Haste {
    None,
    Drain,
    Now,
}

/// Tells a server to end, from wherever. Clones are the same.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Haste>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(watch::Sender::new(Haste::None))
    }
}

impl Stop {
    /// One that SIGTERM and SIGINT tell as well, the second of them to go at once. Needs a Tokio runtime.
    pub fn on_signals() -> Stop {
        let stop = Stop::default();
        let told = stop.clone();
        tokio::spawn(async move {
            signal().await;
            tracing::info!("draining: finishing what runs; a second signal ends it at once");
            told.drain();
            signal().await;
            tracing::warn!("ending at once");
            told.now();
        });
        stop
    }

    /// Accept nothing new, finish what runs, end.
    pub fn drain(&self) {
        self.0.send_if_modified(|haste| std::mem::replace(haste, (*haste).max(Haste::Drain)) < Haste::Drain);
    }

    /// End at once.
    pub fn now(&self) {
        self.0.send_replace(Haste::Now);
    }

    /// Whether it is to end, be it in good order.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= Haste::Drain
    }

    /// Waits until it is to end in good order.
    pub async fn drained(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.0.subscribe().wait_for(|haste| *haste >= Haste::Drain).await;
    }

    /// Waits until it is to end at once.
    pub async fn forced(&self) {
        let _ = self.0.subscribe().wait_for(|haste| *haste >= Haste::Now).await;
    }
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
