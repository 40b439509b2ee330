//! OpenTelemetry traces: one span per request, sent to a collector (OTLP over gRPC) if one is
//! configured.
//!
//! A span starts with the request head and ends when no work on the request remains: for a stream,
//! with its last event. Its parent is the client's span (`traceparent`). A background thread sends
//! spans in batches; an unreachable collector loses spans and affects nothing else.

use crate::call::Usage;
use axum::http::{HeaderMap, Method};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use sconce_engine::Times;
use std::time::Duration;

/// Exporter of request spans.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Sends spans to the collector at `endpoint`, such as `http://localhost:4317`, with this
    /// service name. Needs a Tokio runtime.
    pub fn to(endpoint: &str, service: &str) -> Result<Traces, String> {
        if !endpoint.starts_with("http://") {
            return Err(format!("`{endpoint}` is not a collector's address; use one such as http://localhost:4317"));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint);
        let exporter = exporter.with_timeout(Duration::from_secs(10)).build();
        let exporter = exporter.map_err(|e| format!("`{endpoint}`: {e}"))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(service.to_owned()).with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        Ok(Traces { tracer: provider.tracer("sconce"), provider })
    }

    /// Starts the span of a request.
    pub(crate) fn begin(&self, method: &Method, path: &str, headers: &HeaderMap) -> RequestSpan {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        // The span name has no path yet: unknown paths would make unboundedly many names.
        let builder = SpanBuilder::from_name(method.to_string()).with_kind(SpanKind::Server).with_attributes([
            KeyValue::new("http.request.method", method.to_string()),
            KeyValue::new("url.path", path.to_owned()),
        ]);
        RequestSpan(self.tracer.build_with_context(builder, &parent))
    }

    /// Flushes and ends the exporter.
    pub fn end(&self) {
        if let Err(e) = self.provider.shutdown() {
            tracing::warn!("cannot send the last trace spans: {e}");
        }
    }
}

/// Span of a request; it ends on drop.
#[derive(Debug)]
pub(crate) struct RequestSpan(Span);

impl RequestSpan {
    /// Records the status of the response, or of its head if it streams.
    pub(crate) fn record_response(&mut self, method: &Method, route: Option<&str>, status: u16, id: &str) {
        if let Some(route) = route {
            self.0.update_name(format!("{method} {route}"));
            self.0.set_attribute(KeyValue::new("http.route", route.to_owned()));
        }
        self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        self.0.set_attribute(KeyValue::new("sconce.request.id", id.to_owned()));
        if status >= 500 {
            self.0.set_status(Status::error(""));
        }
    }

    /// Records the model, usage and times of the call.
    pub(crate) fn record_call(&mut self, model: &str, usage: Option<Usage>, times: Times) {
        let Times { tokenization, queue, inference } = times;
        self.0.set_attribute(KeyValue::new("gen_ai.request.model", model.to_owned()));
        if let Some(usage) = usage {
            self.0.set_attribute(KeyValue::new("gen_ai.usage.input_tokens", usage.tokens as i64));
        }
        for (name, time) in [
            ("sconce.time.tokenization", tokenization),
            ("sconce.time.queue", queue),
            ("sconce.time.inference", inference),
        ] {
            self.0.set_attribute(KeyValue::new(name, time.as_secs_f64()));
        }
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}
