//! Prometheus metrics: requests under text-embeddings-inference's names, language models under
//! vLLM's, op counts under ours.

mod llm;
mod models;

pub use llm::{FinishedAnswer, LlmMetrics};

use crate::app::App;
use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use prometheus::{Encoder, Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use sconce_engine::Times;
use std::time::Duration;

/// All metrics of a server.
pub struct Metrics {
    registry: Registry,
    te_count: IntCounterVec,
    te_success: IntCounterVec,
    te_failure: IntCounterVec,
    te_duration: Histogram,
    te_tokenization: Histogram,
    te_queue: Histogram,
    te_inference: Histogram,
    te_length: Histogram,
    running: IntGaugeVec,
    /// Metrics of language models.
    pub llm: LlmMetrics,
}

/// Latency buckets in seconds.
const SECONDS: [f64; 18] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0];
/// Buckets of tokens per request.
const TOKENS: [f64; 12] = [1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let registry = Registry::new();
        // Metric names are constants, each used once, so creating and registering cannot fail.
        macro_rules! add {
            ($metric:expr) => {{
                let metric = $metric.expect("valid metric name");
                registry.register(Box::new(metric.clone())).expect("unique metric name");
                metric
            }};
        }
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
        };
        Metrics {
            te_count: add!(counter("te_request_count", "Requests that reached a model", &["method"])),
            te_success: add!(counter("te_request_success", "Successful requests", &["method"])),
            te_failure: add!(counter("te_request_failure", "Failed requests", &["method", "err"])),
            te_duration: add!(histogram(
                "te_request_duration",
                "Seconds from the request head to the response",
                &SECONDS
            )),
            te_tokenization: add!(histogram("te_request_tokenization_duration", "Seconds of tokenization", &SECONDS)),
            te_queue: add!(histogram("te_request_queue_duration", "Seconds in the queue", &SECONDS)),
            te_inference: add!(histogram("te_request_inference_duration", "Seconds of inference", &SECONDS)),
            te_length: add!(histogram("te_request_input_length", "Input tokens of a request", &TOKENS)),
            running: add!(IntGaugeVec::new(Opts::new("sconce_requests_running", "Running requests"), &["method"])),
            llm: LlmMetrics::new(&registry),
            registry,
        }
    }

    pub(crate) fn begin(&self, method: &str) {
        self.te_count.with_label_values(&[method]).inc();
        self.running.with_label_values(&[method]).inc();
    }

    pub(crate) fn done(&self, method: &str, usage: Usage, took: Duration, times: Times) {
        self.running.with_label_values(&[method]).dec();
        self.te_success.with_label_values(&[method]).inc();
        self.te_duration.observe(took.as_secs_f64());
        self.te_tokenization.observe(times.tokenization.as_secs_f64());
        self.te_queue.observe(times.queue.as_secs_f64());
        self.te_inference.observe(times.inference.as_secs_f64());
        self.te_length.observe(usage.tokens as f64);
    }

    pub(crate) fn failed(&self, method: &str, kind: FaultKind) {
        self.running.with_label_values(&[method]).dec();
        self.count_failure(method, kind);
    }

    /// Counts a request that never got a permit.
    pub(crate) fn refused(&self, method: &str, fault: &Fault) {
        self.te_count.with_label_values(&[method]).inc();
        self.count_failure(method, fault.kind);
    }

    fn count_failure(&self, method: &str, kind: FaultKind) {
        let err = match kind {
            FaultKind::Cancelled => "cancelled".to_owned(),
            FaultKind::Timeout => "timeout".to_owned(),
            kind => format!("{:?}", Fault::new(kind, "").tei_type()).to_lowercase(),
        };
        self.te_failure.with_label_values(&[method, &err]).inc();
    }

    /// The registry, for further metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self, app: &App) -> String {
        let mut text = Vec::new();
        // Writing to a vector cannot fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default() + &models::text(app)
    }
}
