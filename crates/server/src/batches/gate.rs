//! How many lines of batches may be answered at once, beside the requests of clients.

use crate::app::App;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{Mutex, Notify};

/// How often a line that must wait looks whether clients still have requests.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// While clients have requests, this part of the lines runs.
const SHARE_BESIDE_CLIENTS: usize = 4;

/// Admits lines of batches, in the order in which they come.
pub(crate) struct Gate {
    app: Arc<App>,
    limit: usize,
    running: AtomicUsize,
    left: Notify,
    /// Held by the line whose turn it is.
    turn: Mutex<()>,
}

/// A line that is being answered.
pub(crate) struct Pass(Arc<Gate>);

impl Gate {
    /// A gate for at most `limit` lines at once.
    pub(crate) fn new(app: Arc<App>, limit: usize) -> Arc<Gate> {
        let (running, left, turn) = (AtomicUsize::new(0), Notify::new(), Mutex::new(()));
        Arc::new(Gate { app, limit: limit.max(1), running, left, turn })
    }

    /// Waits until a line may begin.
    pub(crate) async fn enter(self: &Arc<Self>) -> Pass {
        let _turn = self.turn.lock().await;
        while self.running.load(SeqCst) >= self.allowed() {
            // Whether clients have requests changes without notice.
            let _ = tokio::time::timeout(LOOK_EVERY, self.left.notified()).await;
        }
        self.running.fetch_add(1, SeqCst);
        Pass(self.clone())
    }

    /// How many lines may run now.
    fn allowed(&self) -> usize {
        let is_busy = self.app.free_permits() < self.app.permits();
        allowed(self.limit, is_busy, || self.app.models.has_waiting_requests())
    }
}

/// How many lines may run: all, if no client has a request; a few beside requests that run; and one
/// while requests wait, so that a batch always comes to its end.
fn allowed(limit: usize, is_busy: bool, is_waiting: impl FnOnce() -> bool) -> usize {
    match is_busy {
        false => limit,
        true if is_waiting() => 1,
        true => (limit / SHARE_BESIDE_CLIENTS).max(1),
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn clients_go_first_and_one_line_always_runs() {
        assert_eq!(allowed(32, false, || true), 32);
        assert_eq!(allowed(32, true, || false), 8);
        assert_eq!(allowed(32, true, || true), 1);
        assert_eq!(allowed(2, true, || false), 1);
    }
}
