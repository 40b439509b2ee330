//! What language models are busy with, under vLLM's names: what gateways and dashboards for such servers read.
//!
//! Tokens, the queue and the cache are the engine's own counts, read when somebody looks; what only the answering handler knows, how
//! an answer ended and how long its parts took, is told here by it.

use super::SECONDS;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use std::time::Duration;

/// Of all language models.
pub struct Language {
    first: HistogramVec,
    per_token: HistogramVec,
    gap: HistogramVec,
    whole: HistogramVec,
    success: IntCounterVec,
}

/// Seconds of a token.
const TOKEN: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5];

/// An answer that came to its end.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// `stop`, `length` or `abort`.
    pub reason: &'a str,
    /// Tokens of the answer.
    pub tokens: usize,
    /// From the request until its first token.
    pub first: Option<Duration>,
    /// From the request until its end.
    pub whole: Duration,
}

impl Language {
    pub(super) fn new(registry: &Registry) -> Language {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let made = HistogramVec::new(opts, &["model_name"]).expect("a metric's name is sound");
            registry.register(Box::new(made.clone())).expect("a metric's name is its own");
            made
        };
        let counted = Opts::new("vllm:request_success_total", "Answers that came to their end, by why");
        let success = IntCounterVec::new(counted, &["model_name", "finished_reason"]).expect("a sound name");
        registry.register(Box::new(success.clone())).expect("a metric's name is its own");
        Language {
            first: histogram("vllm:time_to_first_token_seconds", "From a request to its first token", &SECONDS),
            per_token: histogram("vllm:time_per_output_token_seconds", "An answer's mean time of a token", &TOKEN),
            gap: histogram("vllm:inter_token_latency_seconds", "From a token to the next", &TOKEN),
            whole: histogram("vllm:e2e_request_latency_seconds", "From a request to the end of its answer", &SECONDS),
            success,
        }
    }

    /// An answer's token came so long after the one before.
    pub fn gap(&self, model: &str, gap: Duration) {
        self.gap.with_label_values(&[model]).observe(gap.as_secs_f64());
    }

    /// An answer came to its end.
    pub fn finished(&self, model: &str, answer: &Finished<'_>) {
        self.success.with_label_values(&[model, answer.reason]).inc();
        self.whole.with_label_values(&[model]).observe(answer.whole.as_secs_f64());
        if let Some(first) = answer.first {
            self.first.with_label_values(&[model]).observe(first.as_secs_f64());
            // The first token is the prompt's; the others are what is written at this pace.
            if answer.tokens > 1 {
                let pace = answer.whole.saturating_sub(first).as_secs_f64() / (answer.tokens - 1) as f64;
                self.per_token.with_label_values(&[model]).observe(pace);
            }
        }
    }
}
