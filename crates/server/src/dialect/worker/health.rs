//! A worker's `/health` and its own metrics.

use super::{Member, readiness};
use crate::app::App;
use crate::error::FaultKind;
use crate::served_model::ServedModel;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use sconce_api::worker::{Capabilities, Health};
use sconce_engine::hub::Files;
use serde::Deserialize;
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// Facts that do not change once the model is loaded.
pub(super) struct ModelFacts {
    quant_kind: String,
    vram_bytes: u64,
    tokenizer_kind: String,
    vocab_size: u64,
    context_length: u64,
    pub(super) device: String,
}

/// Planned bytes of a model.
pub(super) fn bytes(served: &ServedModel) -> u64 {
    let plan = served.model.loaded().plan();
    plan.weights + plan.cache + plan.workspace
}

impl Member {
    /// Reads the facts of the model once; may read a file.
    pub(super) fn facts(&self, served: &ServedModel) -> &ModelFacts {
        self.facts.get_or_init(|| {
            let (plan, files) = (served.model.loaded().plan(), served.model.loaded().files());
            ModelFacts {
                quant_kind: self
                    .membership
                    .launch
                    .tuning
                    .dtype
                    .clone()
                    .or_else(|| quant(files))
                    .unwrap_or(plan.dtype.to_string()),
                vram_bytes: bytes(served),
                tokenizer_kind: tokenizer_kind(files),
                vocab_size: plan.vocabulary as u64,
                context_length: plan.max_tokens as u64,
                device: plan.runs_on(),
            }
        })
    }

    /// `GET /health`, from cached facts, so that it never waits for the model.
    pub(crate) fn health(&self, app: &App) -> Response {
        let (launch, ready) = (&self.membership.launch, readiness(app));
        let facts = self.facts.get();
        let device = facts.map_or_else(|| launch.device(), |a| a.device.clone());
        let Capabilities { device, backend, .. } = Capabilities::of(&device);
        let (status, code) = match ready.state.as_str() {
            "ready" if facts.is_some() => ("healthy", StatusCode::OK),
            "draining" => ("draining", StatusCode::OK),
            "loading" | "ready" => ("loading", StatusCode::SERVICE_UNAVAILABLE),
            _ => ("unhealthy", StatusCode::SERVICE_UNAVAILABLE),
        };
        let health = Health {
            status: status.into(),
            worker_id: launch.worker_id.clone(),
            model: launch.model.clone(),
            resident: ready.model_loaded,
            quant_kind: facts.map(|a| a.quant_kind.clone()).unwrap_or_default(),
            vram_bytes_used: facts.map_or(0, |a| a.vram_bytes),
            tokenizer_kind: facts.map(|a| a.tokenizer_kind.clone()).unwrap_or_default(),
            vocab_size: facts.map_or(0, |a| a.vocab_size),
            context_length: facts.map_or(0, |a| a.context_length),
            uptime_seconds: app.started_at.elapsed().as_secs(),
            device,
            backend,
        };
        (code, Json(health)).into_response()
    }

    /// Updates the gauges before a scrape.
    pub(crate) fn refresh(&self, app: &App) {
        self.metrics.uptime.set(i64::try_from(app.started_at.elapsed().as_secs()).unwrap_or(i64::MAX));
        let bytes = self.facts.get().map_or(0, |a| a.vram_bytes);
        self.metrics.vram.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Planned bytes of the model.
    pub(super) fn vram_bytes(&self) -> u64 {
        self.facts.get().map_or(0, |a| a.vram_bytes)
    }
}

/// The weight format in a GGUF file's name: `Q4_K_M` of `model-Q4_K_M.gguf`.
fn quant(files: &Files) -> Option<String> {
    let stem = files.gguf.as_ref()?.first()?.file_stem()?.to_str()?.to_ascii_uppercase();
    let is_format = |part: &&str| {
        let rest = ["IQ", "BF", "Q", "F"].iter().find_map(|p| part.strip_prefix(p));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stem.rsplit(['-', '.']).find(is_format).map(str::to_owned)
}

/// `BPE`, `Unigram`, `WordPiece`, … from `tokenizer.json`; `gguf` if the tokenizer is inside a GGUF
/// file.
fn tokenizer_kind(files: &Files) -> String {
    #[derive(Deserialize)]
    struct Tokenizer {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    if files.gguf.is_some() {
        return "gguf".into();
    }
    let read = File::open(files.dir.join("tokenizer.json")).ok();
    let tokenizer: Option<Tokenizer> = read.and_then(|f| serde_json::from_reader(BufReader::new(f)).ok());
    tokenizer.and_then(|t| t.model.kind).unwrap_or_else(|| "unknown".into())
}

/// Metrics that only a worker has.
pub(super) struct WorkerMetrics {
    vram: IntGauge,
    uptime: IntGauge,
    requests: IntCounterVec,
    tokens: IntCounter,
    duration: Histogram,
}

/// Latency buckets in milliseconds.
const MILLISECONDS: [f64; 14] = [1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 10e3, 30e3, 120e3];

impl WorkerMetrics {
    pub(super) fn new(registry: &Registry) -> WorkerMetrics {
        // Metric names are constants, each used once, so creating and registering cannot fail.
        macro_rules! add {
            ($metric:expr) => {{
                let metric = $metric.expect("valid metric name");
                registry.register(Box::new(metric.clone())).expect("unique metric name");
                metric
            }};
        }
        let duration = HistogramOpts::new("worker_inference_duration_ms", "Duration of a job in milliseconds");
        let outcomes = Opts::new("worker_requests_total", "Jobs by outcome");
        WorkerMetrics {
            vram: add!(IntGauge::new("worker_vram_bytes", "Planned bytes of the model")),
            uptime: add!(IntGauge::new("worker_uptime_seconds", "Seconds since the worker started")),
            requests: add!(IntCounterVec::new(outcomes, &["outcome"])),
            tokens: add!(IntCounter::new("worker_tokens_generated_total", "Generated tokens")),
            duration: add!(Histogram::with_opts(duration.buckets(MILLISECONDS.to_vec()))),
        }
    }

    pub(super) fn outcome(&self, outcome: &str) {
        self.requests.with_label_values(&[outcome]).inc();
    }

    /// Counts a job that did not start.
    pub(super) fn refused(&self, kind: FaultKind) {
        self.outcome(match kind {
            FaultKind::Overloaded | FaultKind::Loading | FaultKind::Unhealthy | FaultKind::Memory => "rejected",
            FaultKind::Cancelled => "cancelled",
            FaultKind::Backend | FaultKind::Internal | FaultKind::Timeout => "error",
            _ => "invalid",
        });
    }

    pub(super) fn tokens(&self, n: usize) {
        self.tokens.inc_by(n as u64);
    }

    pub(super) fn took(&self, time: Duration) {
        self.duration.observe(time.as_secs_f64() * 1e3);
    }
}
