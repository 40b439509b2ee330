//! Server-sent events (SSE): `data: …` lines, then `data: [DONE]`.

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
    // Our types are plain data: serialization cannot fail, and writes one line.
    Event::default().data(serde_json::to_string(body).unwrap_or_default())
}

/// An error after the response head was sent, in OpenAI's format.
pub(crate) fn failed(fault: &Fault) -> Event {
    data(&fault.body(Dialect::OpenAi))
}

/// The last event, `[DONE]`.
pub(crate) fn done() -> Event {
    Event::default().data("[DONE]")
}

/// A response that streams `events`.
pub(crate) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let events = events.map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies must not buffer the stream.
    let head = response.headers_mut();
    head.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
