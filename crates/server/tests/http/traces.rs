//! Spans of requests reach a collector.

use crate::common::{config, serve};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use sconce_server::{Config, Traces};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tonic::{Request, Response, Status};

/// A collector that stores the spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    span.attributes.iter().find(|a| a.key == key)?.value.clone()?.value
}

fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(span, key)? {
        Value::StringValue(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn request_spans_reach_the_collector_under_the_clients_trace() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let collector = Collector::default();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    let service = axum::Router::new().fallback_service(TraceServiceServer::new(collector.clone()));
    runtime.spawn(axum::serve(listener, service).into_future());
    let traces = {
        let _within = runtime.enter();
        Traces::to(&format!("http://{at}"), "a name").unwrap()
    };
    let mut server = serve(&["st-prompts"], Config { traces: Some(traces), ..config() });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let head = [("content-type", "application/json"), ("traceparent", parent), ("x-request-id", "mine")];
    server.send("POST", "/embed", &head, &json!({"inputs": "some text"}).to_string()).ok();
    assert_eq!(server.send("POST", "/nowhere/7", &[], "{}").status, 404);
    // A drained server flushes its spans.
    server.app.stop.drain();
    server.join();

    let exports = collector.0.lock().unwrap();
    let resource = exports[0].resource_spans[0].resource.as_ref().unwrap();
    assert!(format!("{resource:?}").contains("a name"));
    let spans: Vec<&Span> =
        exports.iter().flat_map(|r| &r.resource_spans).flat_map(|r| &r.scope_spans).flat_map(|s| &s.spans).collect();
    let embed = spans.iter().find(|s| s.name == "POST /embed").unwrap_or_else(|| panic!("{spans:?}"));
    assert_eq!(embed.trace_id, 0x0af7651916cd43dd8448eb211c80319c_u128.to_be_bytes());
    assert_eq!(embed.parent_span_id, 0xb7ad6b7169203331_u64.to_be_bytes());
    assert_eq!(text(embed, "gen_ai.request.model").as_deref(), Some("st-prompts"));
    assert_eq!(text(embed, "sconce.request.id").as_deref(), Some("mine"));
    assert_eq!(attribute(embed, "http.response.status_code"), Some(Value::IntValue(200)));
    assert!(matches!(attribute(embed, "gen_ai.usage.input_tokens"), Some(Value::IntValue(n)) if n > 2));
    assert!(matches!(attribute(embed, "sconce.time.inference"), Some(Value::DoubleValue(s)) if s > 0.0));
    assert!(embed.end_time_unix_nano > embed.start_time_unix_nano);
    // An unknown path is not part of the span name: names would be unbounded.
    let not_found = spans.iter().find(|s| text(s, "url.path").as_deref() == Some("/nowhere/7")).unwrap();
    assert_eq!(
        (not_found.name.as_str(), attribute(not_found, "http.response.status_code")),
        ("POST", Some(Value::IntValue(404)))
    );
}

#[test]
fn unreachable_collector_does_not_affect_requests() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let traces = {
        let _within = runtime.enter();
        assert!(Traces::to("collector", "x").is_err());
        Traces::to("http://127.0.0.1:9", "x").unwrap()
    };
    let server = serve(&["st-prompts"], Config { traces: Some(traces), ..config() });
    for _ in 0..3 {
        server.post("/embed", &json!({"inputs": "some text"})).ok();
    }
}
