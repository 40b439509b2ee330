//! Answers with what they cost in their head, as text-embeddings-inference tells it.

use crate::call::Usage;
use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use sconce_engine::Times;
use serde::Serialize;
use std::time::Duration;

/// A JSON body, and what it cost.
pub struct Answer<T> {
    /// The body.
    pub body: T,
    /// What it cost.
    pub compute: Compute,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compute {
    /// Tokens and characters read.
    pub usage: Usage,
    /// From the request's head until now.
    pub total: Duration,
    /// How that is made up.
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

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        (self.compute.headers(), Json(self.body)).into_response()
    }
}
