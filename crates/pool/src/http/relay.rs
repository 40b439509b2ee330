//! An answer on its way from a worker to a client: as it comes, nothing kept back but the part of a stream's event that is not whole
//! yet. If the worker breaks off, the client of a stream hears so in an event; the client of anything else sees it cut.

use super::words::Dialect;
use crate::manager::Manager;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use sconce_api::pool::{Code, Failure};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The longest part of an event that is kept back.
const LONGEST: usize = 256 << 10;

/// A request that a worker has; dropped, it has it no more.
pub(crate) struct Held {
    pub(crate) pool: Arc<Manager>,
    pub(crate) id: String,
    pub(crate) tokens: u64,
    /// The job of an `/execute`.
    pub(crate) job: Option<String>,
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
    inner: Option<Incoming>,
    held: Option<Held>,
    events: Option<Events>,
}

/// A stream of events.
struct Events {
    dialect: Dialect,
    part: Vec<u8>,
}

impl Relay {
    pub(crate) fn new(inner: Incoming, held: Held, events: Option<Dialect>) -> Relay {
        let events = events.map(|dialect| Events { dialect, part: Vec::new() });
        Relay { inner: Some(inner), held: Some(held), events }
    }

    /// It is over. Dropping the body hangs up on the worker, if it is not done.
    fn close(&mut self) -> Option<Held> {
        self.inner = None;
        self.held.take()
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

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let relay = self.get_mut();
        loop {
            let Some(inner) = &mut relay.inner else { return Poll::Ready(None) };
            let frame = match Pin::new(inner).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame,
            };
            match (frame, &mut relay.events) {
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
                    let held = relay.close();
                    let id = held.as_ref().map_or_else(String::new, |h| h.id.clone());
                    tracing::warn!(worker = id, "broke off in the middle of a stream: {e}");
                    doubt(held);
                    let why = format!("the worker {id} broke off in the middle of the answer; ask again");
                    let last = dialect.last_words(&Failure::new(Code::WorkerFailed, why));
                    return Poll::Ready(Some(Ok(Frame::data(last.into()))));
                }
                (Some(Err(e)), None) => {
                    doubt(relay.close());
                    return Poll::Ready(Some(Err(e)));
                }
                (None, events) => {
                    let rest = events.as_mut().map(|e| std::mem::take(&mut e.part)).unwrap_or_default();
                    relay.close();
                    return match rest.is_empty() {
                        true => Poll::Ready(None),
                        false => Poll::Ready(Some(Ok(Frame::data(rest.into())))),
                    };
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match (&self.inner, &self.events) {
            (None, _) => true,
            (Some(inner), None) => inner.is_end_stream(),
            (Some(_), Some(_)) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.events) {
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
