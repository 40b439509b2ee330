//! Events as a server sends them: `data: …` after `data: …`, and `data: [DONE]`.

use crate::error::{Dialect, Fault};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;

/// Between comments that keep a silent connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event.
pub(crate) fn data(body: &impl Serialize) -> Event {
    // Our types are plain data: they always become JSON, and JSON is one line.
    Event::default().data(serde_json::to_string(body).unwrap_or_default())
}

/// What goes wrong after the answer's head is gone, in OpenAI's words.
pub(crate) fn failed(fault: &Fault) -> Event {
    data(&fault.body(Dialect::OpenAi))
}

/// The last event.
pub(crate) fn done() -> Event {
    Event::default().data("[DONE]")
}

/// An answer of these events.
pub(crate) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let events = events.map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies that collect answers would undo what a stream is for.
    let head = response.headers_mut();
    head.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}
