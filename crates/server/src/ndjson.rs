//! Streams of JSON objects, one per line (NDJSON).

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use std::convert::Infallible;

/// A line with a JSON object.
pub(crate) fn line(body: &impl Serialize) -> Bytes {
    // Our types are plain data: serialization cannot fail, and writes one line.
    let mut line = serde_json::to_vec(body).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// A response that streams `lines`.
pub(crate) fn answer(lines: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Body::from_stream(lines.map(Ok::<_, Infallible>)).into_response();
    let head = response.headers_mut();
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    // Proxies must not buffer the stream.
    head.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
