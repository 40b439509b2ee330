//! Metrics of language models under vLLM's names, which gateways and dashboards read.
//!
//! Tokens, queue and KV cache are the engine's counts, read at each scrape (`models.rs`). This file
//! has what only the handler knows: how answers end, and their latencies.

use super::SECONDS;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use std::time::Duration;

/// Metrics of all language models.
pub struct LlmMetrics {
    time_to_first_token: HistogramVec,
    per_token: HistogramVec,
    inter_token: HistogramVec,
    latency: HistogramVec,
    success: IntCounterVec,
}

/// Histogram buckets of the time per token, in seconds.
const TOKEN_SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5];

/// A finished answer.
#[derive(Clone, Copy, Debug)]
pub struct FinishedAnswer<'a> {
    /// `stop`, `length` or `abort`.
    pub reason: &'a str,
    /// Generated tokens.
    pub tokens: usize,
    /// Time to first token.
    pub time_to_first_token: Option<Duration>,
    /// End-to-end latency.
    pub latency: Duration,
}

impl LlmMetrics {
    pub(super) fn new(registry: &Registry) -> LlmMetrics {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let metric = HistogramVec::new(opts, &["model_name"]).expect("valid metric name");
            registry.register(Box::new(metric.clone())).expect("unique metric name");
            metric
        };
        let opts = Opts::new("vllm:request_success_total", "Finished answers, by reason");
        let success = IntCounterVec::new(opts, &["model_name", "finished_reason"]).expect("valid metric name");
        registry.register(Box::new(success.clone())).expect("unique metric name");
        LlmMetrics {
            time_to_first_token: histogram("vllm:time_to_first_token_seconds", "Time to first token", &SECONDS),
            per_token: histogram(
                "vllm:time_per_output_token_seconds",
                "Mean time per output token of an answer",
                &TOKEN_SECONDS,
            ),
            inter_token: histogram(
                "vllm:inter_token_latency_seconds",
                "Time between two tokens of an answer",
                &TOKEN_SECONDS,
            ),
            latency: histogram("vllm:e2e_request_latency_seconds", "End-to-end request latency", &SECONDS),
            success,
        }
    }

    /// Records the time between two tokens of an answer.
    pub fn inter_token(&self, model: &str, inter_token: Duration) {
        self.inter_token.with_label_values(&[model]).observe(inter_token.as_secs_f64());
    }

    /// Records a finished answer.
    pub fn finished(&self, model: &str, answer: &FinishedAnswer<'_>) {
        self.success.with_label_values(&[model, answer.reason]).inc();
        self.latency.with_label_values(&[model]).observe(answer.latency.as_secs_f64());
        if let Some(time_to_first_token) = answer.time_to_first_token {
            self.time_to_first_token.with_label_values(&[model]).observe(time_to_first_token.as_secs_f64());
            // The first token belongs to prefill; the others show the decode speed.
            if answer.tokens > 1 {
                let per_token =
                    answer.latency.saturating_sub(time_to_first_token).as_secs_f64() / (answer.tokens - 1) as f64;
                self.per_token.with_label_values(&[model]).observe(per_token);
            }
        }
    }
}
