//! Ctrl-C and SIGTERM while shards are computed.

use crate::Failure;
use sconce_engine::RequestContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// What the user wants.
const GO_ON: u8 = 0;
const AFTER_THIS_SHARD: u8 = 1;
const NOW: u8 = 2;

/// Whether the process shall stop.
#[derive(Clone)]
pub(super) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// From now on, the first Ctrl-C stops after the current shard, and the second one at once, as
    /// SIGTERM does: service managers send SIGKILL soon after it. Requests of `context` then end.
    pub(super) fn install(context: &RequestContext) -> Result<Stop, Failure> {
        let stop = Stop(Arc::new(AtomicU8::new(GO_ON)));
        let (handler, context) = (stop.clone(), context.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Until the handlers are there, a signal ends the process.
        let (ready, is_ready) = channel();
        let wait = move || {
            runtime.block_on(async {
                let signals = Signals::listen();
                let _ = ready.send(signals.as_ref().map(|_| ()).map_err(ToString::to_string));
                let Ok(mut signals) = signals else { return };
                loop {
                    let is_interrupt = signals.next().await;
                    handler.signal(is_interrupt, &context);
                }
            });
        };
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        is_ready.recv()?.map_err(|e| format!("cannot listen to signals: {e}"))?;
        Ok(stop)
    }

    fn signal(&self, is_interrupt: bool, context: &RequestContext) {
        match self.0.load(SeqCst) {
            GO_ON if is_interrupt => {
                self.0.store(AFTER_THIS_SHARD, SeqCst);
                eprintln!("finishing this shard; press Ctrl-C again to give it back and stop at once");
            }
            // The third time: something hangs. The lease runs out by itself.
            NOW => std::process::exit(130),
            _ => {
                self.0.store(NOW, SeqCst);
                context.cancel();
            }
        }
    }

    /// Whether no further shard shall be begun.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(SeqCst) != GO_ON
    }

    /// Whether the current shard shall be given back.
    pub(super) fn is_now(&self) -> bool {
        self.0.load(SeqCst) == NOW
    }

    /// Sleeps until the current shard shall be given back, at most for this time.
    pub(super) fn sleep(&self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time && !self.is_now() {
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Ctrl-C and SIGTERM.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one; `true` if it is Ctrl-C.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => false,
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    async fn next(&mut self) -> bool {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler the system ends the process.
            std::future::pending::<()>().await;
        }
        true
    }
}
