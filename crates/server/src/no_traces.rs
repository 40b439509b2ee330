//! `traces.rs` of builds without the feature `otlp`: nothing can be sent, so neither type has a
//! value.

use crate::call::Usage;
use axum::http::{HeaderMap, Method};
use sconce_engine::Times;

/// Exporter of request spans. This build has none.
#[derive(Clone, Debug)]
pub enum Traces {}

impl Traces {
    /// Fails: sending spans needs a build with the feature `otlp`.
    pub fn to(endpoint: &str, _: &str) -> Result<Traces, String> {
        Err(format!("`{endpoint}`: this build cannot send traces; build with `--features otlp`"))
    }

    pub(crate) fn begin(&self, _: &Method, _: &str, _: &HeaderMap) -> RequestSpan {
        match *self {}
    }

    /// Flushes and ends the exporter.
    pub fn end(&self) {
        match *self {}
    }
}

/// Span of a request.
#[derive(Debug)]
pub(crate) enum RequestSpan {}

impl RequestSpan {
    pub(crate) fn record_response(&mut self, _: &Method, _: Option<&str>, _: u16, _: &str) {
        match *self {}
    }

    pub(crate) fn record_call(&mut self, _: &str, _: Option<Usage>, _: Times) {
        match *self {}
    }
}
