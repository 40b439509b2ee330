//! JSON responses with text-embeddings-inference's `x-compute-*` headers.

use crate::call::Usage;
use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use sconce_engine::Times;
use serde::Serialize;
use std::time::Duration;

/// A JSON response body with its cost.
pub struct Answer<T> {
    /// The response body.
    pub body: T,
    /// Its cost, for the headers.
    pub compute: Compute,
}

/// Cost of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compute {
    /// Tokens and characters read.
    pub usage: Usage,
    /// Time since the request head.
    pub total: Duration,
    /// Its parts: tokenization, queue, inference.
    pub times: Times,
}

impl Compute {
    fn headers(&self) -> HeaderMap {
        let ms = |d: Duration| HeaderValue::from(d.as_millis().min(u128::from(u64::MAX)) as u64);
        let Times { tokenization, queue, inference } = self.times;
        [
            ("x-compute-type", HeaderValue::from_static("sconce")),
            ("x-compute-time", ms(self.total)),
            ("x-compute-tokens", HeaderValue::from(self.usage.tokens)),
            ("x-compute-characters", HeaderValue::from(self.usage.characters)),
            ("x-total-time", ms(self.total)),
            ("x-tokenization-time", ms(tokenization)),
            ("x-queue-time", ms(queue)),
            ("x-inference-time", ms(inference)),
        ]
        .into_iter()
        .map(|(name, value)| (HeaderName::from_static(name), value))
        .collect()
    }
}

impl<T> Answer<T> {
    /// Converts the body.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { body: convert(self.body), compute: self.compute }
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        (self.compute.headers(), Json(self.body)).into_response()
    }
}
