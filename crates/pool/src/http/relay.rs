//! An answer on its way from a worker to a client: as it comes, nothing kept back but the part of a stream's event that is not whole
//! yet. If the worker breaks off, the client of a stream hears so in an event; the client of anything else sees it cut.

use super::Peer;
use super::words::Dialect;
use crate::manager::Manager;
use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use sconce_api::pool::{Code, Failure};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// The longest part of an event that is kept back.
const LONGEST: usize = 256 << 10;

/// A request that a worker has; dropped, it has it no more.
pub(crate) struct Held {
    pub(crate) pool: Arc<Manager>,
    pub(crate) id: String,
    pub(crate) tokens: u64,
    /// The job of an `/execute`.
    pub(crate) job: Option<String>,
    /// Whose connection waits for this answer alone.
    pub(crate) peer: Option<Peer>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            self.pool.forget(job, &self.id);
        }
        let (id, tokens) = (&self.id, self.tokens);
        self.pool.decide(|core, now| ((), core.end(id, tokens, now)));
    }
}

/// The body of an answer.
pub(crate) struct Relay {
    inside: Arc<Mutex<Inside>>,
    watch: AbortHandle,
}

struct Inside {
    inner: Option<Incoming>,
    held: Option<Held>,
    events: Option<Events>,
    /// Since when the client has not come for more of what there is.
    idle: Option<Instant>,
    given_up: bool,
}

/// A stream of events.
struct Events {
    dialect: Dialect,
    part: Vec<u8>,
}

impl Relay {
    pub(crate) fn new(inner: Incoming, held: Held, events: Option<Dialect>) -> Relay {
        let events = events.map(|dialect| Events { dialect, part: Vec::new() });
        let patience = held.pool.config.patience;
        let inside = Inside { inner: Some(inner), held: Some(held), events, idle: None, given_up: false };
        let inside = Arc::new(Mutex::new(inside));
        let watch = tokio::spawn(watch(inside.clone(), patience)).abort_handle();
        Relay { inside, watch }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.watch.abort();
        // The watch may hold on a little; the worker must not wait for it.
        self.inside().close();
    }
}

/// Gives up on a client that does not read: its connection is stuck, so that nobody else would let go of the worker.
async fn watch(inside: Arc<Mutex<Inside>>, patience: Duration) {
    loop {
        tokio::time::sleep(patience / 2).await;
        let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.is_stuck(Instant::now(), patience) {
            tracing::warn!("a client has not read for {patience:?}; its request is given up");
            inside.given_up = true;
            if let Some(peer) = inside.close().and_then(|mut held| held.peer.take()) {
                peer.hang_up();
            }
        }
        if inside.inner.is_none() {
            return;
        }
    }
}

impl Events {
    /// What can be passed on: whole events.
    fn whole(&mut self, data: &[u8]) -> Bytes {
        self.part.extend_from_slice(data);
        let end = match self.part.windows(2).rposition(|w| w == b"\n\n") {
            Some(at) => at + 2,
            None if self.part.len() > LONGEST => self.part.len(),
            None => 0,
        };
        self.part.drain(..end).collect::<Vec<u8>>().into()
    }
}

impl Inside {
    fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        self.idle.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// It is over. Dropping the body hangs up on the worker, if it is not done.
    fn close(&mut self) -> Option<Held> {
        self.inner = None;
        self.held.take()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.given_up {
            // An end here would look like the end of the answer.
            return Poll::Ready(Some(Err("given up: the client did not read".into())));
        }
        loop {
            let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
            let frame = match Pin::new(inner).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame,
            };
            match (frame, &mut self.events) {
                (Some(Ok(frame)), Some(events)) => match frame.into_data() {
                    Ok(data) => {
                        let whole = events.whole(&data);
                        if !whole.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(whole))));
                        }
                    }
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                (Some(Ok(frame)), None) => return Poll::Ready(Some(Ok(frame))),
                (Some(Err(e)), Some(events)) => {
                    let dialect = events.dialect;
                    let held = self.close();
                    let id = held.as_ref().map_or_else(String::new, |h| h.id.clone());
                    tracing::warn!(worker = id, "broke off in the middle of a stream: {e}");
                    doubt(held);
                    let why = format!("the worker {id} broke off in the middle of the answer; ask again");
                    let last = dialect.last_words(&Failure::new(Code::WorkerFailed, why));
                    return Poll::Ready(Some(Ok(Frame::data(last.into()))));
                }
                (Some(Err(e)), None) => {
                    doubt(self.close());
                    return Poll::Ready(Some(Err(e.into())));
                }
                (None, events) => {
                    let rest = events.as_mut().map(|e| std::mem::take(&mut e.part)).unwrap_or_default();
                    self.close();
                    return match rest.is_empty() {
                        true => Poll::Ready(None),
                        false => Poll::Ready(Some(Ok(Frame::data(rest.into())))),
                    };
                }
            }
        }
    }
}

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut inside = self.inside();
        let polled = inside.poll(cx);
        // Whoever was given something comes back when it is handed over.
        inside.idle = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        let inside = self.inside();
        match (&inside.inner, &inside.events) {
            (None, _) => !inside.given_up,
            (Some(inner), None) => inner.is_end_stream(),
            (Some(_), Some(_)) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let inside = self.inside();
        match (&inside.inner, &inside.events) {
            (Some(inner), None) => inner.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// Has the worker looked at.
fn doubt(held: Option<Held>) {
    if let Some(held) = &held {
        held.pool.decide(|core, now| ((), core.doubt(&held.id, now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_come_for_more_is_given_up() {
        let (now, patience) = (Instant::now(), Duration::from_secs(60));
        let inside = |idle| Inside { inner: None, held: None, events: None, idle, given_up: false };
        assert!(!inside(None).is_stuck(now + patience * 2, patience), "the worker is waited for, not the client");
        assert!(!inside(Some(now)).is_stuck(now + patience / 2, patience));
        assert!(inside(Some(now)).is_stuck(now + patience, patience));
    }

    #[test]
    fn events_are_passed_on_whole() {
        let mut events = Events { dialect: Dialect::OpenAi, part: Vec::new() };
        let mut pass = |data: &str| String::from_utf8(events.whole(data.as_bytes()).to_vec()).unwrap();
        assert_eq!(pass("data: 1\n\n"), "data: 1\n\n");
        assert_eq!(pass("data: 2\n"), "");
        assert_eq!(pass("\ndata: 3\n\nda"), "data: 2\n\ndata: 3\n\n");
        assert_eq!(pass("ta: 4\n\n"), "data: 4\n\n");
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(pass(&long).len(), LONGEST + 1);
    }
}
