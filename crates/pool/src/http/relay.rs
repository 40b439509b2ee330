//! Streams a response from a worker to a client. Of an event stream only whole events are passed
//! on. If the worker's connection breaks or its host is lost, an event stream ends with an error
//! event; any other response is cut off.

use super::Peer;
use super::messages::Dialect;
use super::remote::{HostLink, too_late};
use crate::hosts::Host;
use crate::manager::Manager;
use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use sconce_api::pool::{Code, Failure};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Largest incomplete event that is buffered.
const MAX_PARTIAL_EVENT: usize = 256 << 10;

/// Counts a request as load of its worker until it is dropped.
pub(crate) struct RequestGuard {
    pub(crate) pool: Arc<Manager>,
    pub(crate) id: String,
    pub(crate) tokens: u64,
    /// The job of an `/execute` or `/v1/jobs`.
    pub(crate) job: Option<String>,
    /// The HTTP/1 client, whose connection waits for this response alone.
    pub(crate) peer: Option<Peer>,
    /// The connection to its host, if that is another one.
    pub(crate) link: Option<HostLink>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            self.pool.remove_job(job, &self.id);
        }
        let (id, tokens) = (&self.id, self.tokens);
        self.pool.decide(|core, now| ((), core.end(id, tokens, now)));
    }
}

/// Body of a response.
pub(crate) struct Relay {
    state: Arc<Mutex<RelayState>>,
    watch: AbortHandle,
}

struct RelayState {
    inner: Option<Incoming>,
    guard: Option<RequestGuard>,
    events: Option<EventStream>,
    remote: Option<Remote>,
    /// Since when the client has not polled for the data that is ready.
    idle_since: Option<Instant>,
    given_up: bool,
}

/// The other host that sends the response.
struct Remote {
    host: Arc<Host>,
    deadline: Option<tokio::time::Instant>,
    /// Resolves when the response must end although nothing more of it has arrived.
    interruption: Pin<Box<dyn Future<Output = String> + Send>>,
}

impl Remote {
    fn new(link: HostLink) -> Remote {
        Remote { host: link.host.clone(), deadline: link.deadline, interruption: link.interruption() }
    }

    /// Why the response must end although more of it has arrived.
    fn time_out(&self) -> Option<String> {
        let is_late = self.deadline.is_some_and(|deadline| tokio::time::Instant::now() >= deadline);
        is_late.then(|| too_late(&self.host))
    }
}

/// A server-sent event stream.
struct EventStream {
    dialect: Dialect,
    part: Vec<u8>,
}

impl Relay {
    pub(crate) fn new(inner: Incoming, mut guard: RequestGuard, events: Option<Dialect>) -> Relay {
        let events = events.map(|dialect| EventStream { dialect, part: Vec::new() });
        let client_timeout = guard.pool.config.client_timeout;
        let remote = guard.link.take().map(Remote::new);
        let (inner, guard) = (Some(inner), Some(guard));
        let state = RelayState { inner, guard, events, remote, idle_since: None, given_up: false };
        let state = Arc::new(Mutex::new(state));
        let watch = tokio::spawn(watch(state.clone(), client_timeout)).abort_handle();
        Relay { state, watch }
    }

    fn state(&self) -> MutexGuard<'_, RelayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.watch.abort();
        // The watching task may keep its reference a little longer; the worker must not wait for
        // it.
        self.state().close();
    }
}

/// Gives up on a client that does not read: its connection is stuck, so nothing else would release
/// the worker.
async fn watch(state: Arc<Mutex<RelayState>>, client_timeout: Duration) {
    loop {
        tokio::time::sleep(client_timeout / 2).await;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_stuck(Instant::now(), client_timeout) {
            tracing::warn!("a client has not read its response for {client_timeout:?}; its request is cancelled");
            state.given_up = true;
            if let Some(peer) = state.close().and_then(|mut guard| guard.peer.take()) {
                peer.hang_up();
            }
        }
        if state.inner.is_none() {
            return;
        }
    }
}

impl EventStream {
    /// Adds data and returns the events that are complete.
    fn push(&mut self, data: &[u8]) -> Bytes {
        self.part.extend_from_slice(data);
        let end = match self.part.windows(2).rposition(|w| w == b"\n\n") {
            Some(at) => at + 2,
            None if self.part.len() > MAX_PARTIAL_EVENT => self.part.len(),
            None => 0,
        };
        self.part.drain(..end).collect::<Vec<u8>>().into()
    }
}

impl RelayState {
    fn is_stuck(&self, now: Instant, client_timeout: Duration) -> bool {
        self.idle_since.is_some_and(|since| now.saturating_duration_since(since) >= client_timeout)
    }

    /// Ends the response. Dropping the body closes the connection to the worker, if the worker is
    /// not done.
    fn close(&mut self) -> Option<RequestGuard> {
        self.inner = None;
        self.guard.take()
    }

    /// Ends a response that the worker cannot complete.
    fn broken(&mut self, why: &str) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let guard = self.close();
        let id = guard.as_ref().map_or_else(String::new, |h| h.id.clone());
        tracing::warn!(worker = id, "the connection broke in the middle of a response: {why}");
        probe_worker(guard);
        let why = format!("the connection to worker {id} broke in the middle of the response; send the request again");
        Poll::Ready(Some(match &self.events {
            Some(events) => {
                let last = events.dialect.error_event(&Failure::new(Code::WorkerFailed, why));
                Ok(Frame::data(last.into()))
            }
            None => Err(why.into()),
        }))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.given_up {
            // A regular end would look like the end of the response.
            return Poll::Ready(Some(Err("cancelled: the client did not read the response".into())));
        }
        loop {
            let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
            let frame = match Pin::new(inner).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    // A client that reads slowly gets what has arrived, also of a host that is lost.
                    let Some(remote) = &mut self.remote else { return Poll::Pending };
                    let Poll::Ready(why) = remote.interruption.as_mut().poll(cx) else { return Poll::Pending };
                    self.remote = None;
                    return self.broken(&why);
                }
            };
            if let Some(Ok(_)) = &frame {
                if let Some(why) = self.remote.as_ref().and_then(Remote::time_out) {
                    return self.broken(&why);
                }
                if let Some(remote) = &self.remote {
                    remote.host.record_activity();
                }
            }
            match (frame, &mut self.events) {
                (Some(Ok(frame)), Some(events)) => match frame.into_data() {
                    Ok(data) => {
                        let push = events.push(&data);
                        if !push.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(push))));
                        }
                    }
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                (Some(Ok(frame)), None) => return Poll::Ready(Some(Ok(frame))),
                (Some(Err(e)), _) => return self.broken(&e.to_string()),
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
        let mut state = self.state();
        let polled = state.poll(cx);
        // After a frame, hyper polls again once the client has read it.
        state.idle_since = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state();
        match (&state.inner, &state.events) {
            (None, _) => !state.given_up,
            (Some(inner), None) => inner.is_end_stream(),
            (Some(_), Some(_)) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.state();
        match (&state.inner, &state.events) {
            (Some(inner), None) => inner.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// Asks the core to probe the worker.
fn probe_worker(guard: Option<RequestGuard>) {
    if let Some(guard) = &guard {
        guard.pool.decide(|core, now| ((), core.probe_now(&guard.id, now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_stops_reading_is_stuck_after_timeout() {
        let (now, client_timeout) = (Instant::now(), Duration::from_secs(60));
        let state = |idle_since| RelayState {
            inner: None,
            guard: None,
            events: None,
            remote: None,
            idle_since,
            given_up: false,
        };
        assert!(
            !state(None).is_stuck(now + client_timeout * 2, client_timeout),
            "the relay waits for the worker, not for the client"
        );
        assert!(!state(Some(now)).is_stuck(now + client_timeout / 2, client_timeout));
        assert!(state(Some(now)).is_stuck(now + client_timeout, client_timeout));
    }

    #[test]
    fn only_whole_events_are_forwarded() {
        let mut events = EventStream { dialect: Dialect::OpenAi, part: Vec::new() };
        let mut pass = |data: &str| String::from_utf8(events.push(data.as_bytes()).to_vec()).unwrap();
        assert_eq!(pass("data: 1\n\n"), "data: 1\n\n");
        assert_eq!(pass("data: 2\n"), "");
        assert_eq!(pass("\ndata: 3\n\nda"), "data: 2\n\ndata: 3\n\n");
        assert_eq!(pass("ta: 4\n\n"), "data: 4\n\n");
        let long = "x".repeat(MAX_PARTIAL_EVENT + 1);
        assert_eq!(pass(&long).len(), MAX_PARTIAL_EVENT + 1);
    }
}
