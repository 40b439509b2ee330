//! Server-sent events (SSE): `data: …` lines, then `data: [DONE]`; or events with names, the last of
//! which ends the stream.

use crate::error::{Dialect, Fault};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An event with a JSON body.
pub(crate) fn data(body: &impl Serialize) -> Event {
    Event::default().data(json(body))
}

/// An event with a name and a JSON body.
pub(crate) fn named(name: &str, body: &impl Serialize) -> Event {
    Event::default().event(name).data(json(body))
}

fn json(body: &impl Serialize) -> String {
    // Our types are plain data: serialization cannot fail, and writes one line.
    serde_json::to_string(body).unwrap_or_default()
}

/// An error after the response head was sent, in OpenAI's format.
pub(crate) fn failed(fault: &Fault) -> Event {
    data(&fault.body(Dialect::OpenAi))
}

/// The last event, `[DONE]`.
pub(crate) fn done() -> Event {
    Event::default().data("[DONE]")
}

/// A response that streams `events`, and comments while there are none.
pub(crate) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    answer_with(events, KeepAlive::new())
}

/// A response that streams `events`, and `idle` while there are none.
pub(crate) fn answer_pinging(events: impl Stream<Item = Event> + Send + 'static, idle: Event) -> Response {
    answer_with(events, KeepAlive::new().event(idle))
}

fn answer_with(events: impl Stream<Item = Event> + Send + 'static, keep_alive: KeepAlive) -> Response {
    use futures_util::StreamExt;
    let events = events.map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(keep_alive.interval(KEEP_ALIVE)).into_response();
    // Proxies must not buffer the stream.
    let head = response.headers_mut();
    head.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
