//! A span of every request, sent to an OpenTelemetry collector (OTLP over gRPC) where the user names one.
//!
//! A span begins with a request's head and ends when nobody works on the request any more: with the last event of a stream, not with
//! its first. It is the child of the one that the client names (`traceparent`). Spans are sent in batches by a thread of their own;
//! a collector that is not there costs its spans and nothing else.

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

/// Where spans go.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// To the collector at `endpoint`, such as `http://localhost:4317`, under the name of this service. Needs a Tokio runtime.
    pub fn to(endpoint: &str, service: &str) -> Result<Traces, String> {
        if !endpoint.starts_with("http://") {
            return Err(format!("`{endpoint}`: a collector is named as in http://localhost:4317"));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint);
        let exporter = exporter.with_timeout(Duration::from_secs(10)).build();
        let exporter = exporter.map_err(|e| format!("`{endpoint}`: {e}"))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(service.to_owned()).with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
        Ok(Traces { tracer: provider.tracer("sconce"), provider })
    }

    /// Of a request that has come.
    pub(crate) fn begin(&self, method: &Method, path: &str, headers: &HeaderMap) -> Traced {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        // A path is part of a name only where it is one of ours; others come in as many kinds as there are clients.
        let builder = SpanBuilder::from_name(method.to_string()).with_kind(SpanKind::Server).with_attributes([
            KeyValue::new("http.request.method", method.to_string()),
            KeyValue::new("url.path", path.to_owned()),
        ]);
        Traced(self.tracer.build_with_context(builder, &parent))
    }

    /// Sends what has not been sent.
    pub fn end(&self) {
        if let Err(e) = self.provider.shutdown() {
            tracing::warn!("the last spans are lost: {e}");
        }
    }
}

/// A request's span, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Traced(Span);

impl Traced {
    /// The request is answered so, or its first bytes are.
    pub(crate) fn answered(&mut self, method: &Method, route: Option<&str>, status: u16, id: &str) {
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

    /// A model has worked on it.
    pub(crate) fn worked(&mut self, model: &str, usage: Option<Usage>, times: Times) {
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
