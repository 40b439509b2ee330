//! Wire types of a worker: a server with one model, started by a pool manager with the flags in
//! [`Launch`].

mod execute;
mod launch;

pub use execute::{Execute, MOST_STOPS, MOST_TOKENS, Violation};
pub use launch::{Launch, Tuning};

use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// Response of `POST /v1/jobs`: the job has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCreated {
    /// Id of the job, from the request.
    pub job_id: String,
    /// Path of the job's events, for `GET`.
    pub sse_url: String,
}

impl JobCreated {
    /// The response for the job `id`, which is percent-encoded in the path.
    pub fn new(id: &str) -> JobCreated {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let encode = |b: u8| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
        let encoded: String = id.bytes().map(encode).collect();
        JobCreated { job_id: id.into(), sse_url: format!("/v1/jobs/{encoded}/stream") }
    }
}

/// An event of `/execute`, tagged by `type`: one `started`, any number of `token`, at most one
/// `metrics`, then exactly one `end` or `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The job was accepted.
    Started {
        /// Id of the job, from the request.
        job_id: String,
        /// Name of the model.
        model: String,
        /// Time in RFC 3339.
        started_at: String,
    },
    /// New text, in whole characters.
    Token {
        /// The new text.
        t: String,
        /// Index of the event, from 0.
        i: u64,
    },
    /// Speed and memory, before the end.
    Metrics {
        /// Generated tokens per second.
        tokens_per_sec: f64,
        /// Planned bytes of the model.
        vram_bytes: u64,
    },
    /// The answer is complete or was cancelled.
    End {
        /// Generated tokens.
        tokens_out: u64,
        /// Milliseconds from the first token to the last.
        decode_time_ms: u64,
        /// Why the answer ended.
        stop_reason: StopReason,
        /// The stop string that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_sequence_matched: Option<String>,
    },
    /// The job failed.
    Error(Failure),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StopReason {
    /// `max_tokens` or the context length was reached.
    MaxTokens,
    /// End-of-sequence token.
    Eos,
    /// A stop string was generated.
    StopSequence,
    /// The client disconnected or cancelled.
    Cancelled,
    /// The job failed.
    Error,
}

/// Error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// Invalid request; `errors` lists the fields.
    InvalidRequest,
    /// The model failed to load.
    ModelLoadFailed,
    /// Out of memory during the request.
    VramOom,
    /// Internal error.
    Internal,
    /// Not enough memory for the model.
    InsufficientVram,
    /// The worker is loading, draining, overloaded or unhealthy.
    WorkerUnhealthy,
    /// The request timed out.
    InferenceTimeout,
    /// The client disconnected or cancelled.
    Cancelled,
    /// The API key is missing.
    MissingApiKey,
    /// The API key is wrong.
    InvalidApiKey,
}

impl Code {
    /// HTTP status of the code.
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidRequest => 400,
            Code::MissingApiKey | Code::InvalidApiKey => 401,
            Code::Cancelled => 499,
            Code::ModelLoadFailed | Code::VramOom | Code::Internal => 500,
            Code::InsufficientVram | Code::WorkerUnhealthy => 503,
            Code::InferenceTimeout => 504,
        }
    }

    /// Whether the same request may succeed later or on another worker.
    pub fn is_retriable(self) -> bool {
        match self {
            Code::VramOom | Code::InsufficientVram | Code::WorkerUnhealthy | Code::InferenceTimeout => true,
            Code::InvalidRequest | Code::ModelLoadFailed | Code::Internal | Code::Cancelled => false,
            Code::MissingApiKey | Code::InvalidApiKey => false,
        }
    }
}

/// An error, as a response body and as an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// Error code.
    pub code: Code,
    /// What failed, on what input, and what to do next.
    pub message: String,
    /// Whether the same request may succeed later or on another worker.
    pub retriable: bool,
    /// All invalid fields of an invalid request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Violation>,
}

impl Failure {
    /// An error; `retriable` follows from the code.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), retriable: code.is_retriable(), errors: Vec::new() }
    }

    /// An invalid request.
    pub fn invalid(errors: Vec<Violation>) -> Failure {
        let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
        let message = format!("the request is not valid: {}", fields.join(", "));
        Failure { errors, ..Failure::new(Code::InvalidRequest, message) }
    }
}

/// `POST /cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancel {
    /// Id of the job, from its request.
    pub job_id: String,
}

/// `GET /health` of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `healthy`, `loading`, `draining` or `unhealthy`.
    pub status: String,
    /// Id of the worker; a restarted manager checks it.
    pub worker_id: String,
    /// The model, from the flags.
    pub model: String,
    /// Whether the weights are in the device's memory.
    pub resident: bool,
    /// Format of the weights.
    pub quant_kind: String,
    /// Planned bytes of the model.
    pub vram_bytes_used: u64,
    /// Kind of tokenizer.
    pub tokenizer_kind: String,
    /// Size of the vocabulary.
    pub vocab_size: u64,
    /// Context length in tokens.
    pub context_length: u64,
    /// Seconds since the worker started.
    pub uptime_seconds: u64,
    /// `cpu`, `nvidia_gpu` or `apple_silicon_gpu`.
    pub device: String,
    /// `cpu`, `cuda` or `metal`.
    pub backend: String,
}

/// `GET /v1/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// Whether the worker accepts requests.
    pub ready: bool,
    /// `loading`, `ready`, `draining` or `failed`.
    pub state: String,
    /// Whether the model is loaded.
    pub model_loaded: bool,
}

/// One event of `GET /v1/loading/progress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Current stage: `loading`, …, finally `ready` or `failed`.
    pub stage: String,
    /// Layers whose weights have been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_loaded: Option<u64>,
    /// Layers of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_total: Option<u64>,
    /// Used device memory in megabytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_mb: Option<u64>,
    /// Completed part of the stage, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f32>,
    /// Why loading failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Device and backends of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// Backends that it was built with and runs on: `["metal"]`.
    pub capabilities: Vec<String>,
    /// `cpu`, `nvidia_gpu` or `apple_silicon_gpu`.
    pub device: String,
    /// `cpu`, `cuda` or `metal`.
    pub backend: String,
}

impl Capabilities {
    /// The capabilities of a device by its name in Sconce: `cpu`, `cuda:0`, `metal:0`.
    pub fn of(device: &str) -> Capabilities {
        let backend = device.split(':').next().unwrap_or_default().to_string();
        let device = match backend.as_str() {
            "cuda" => "nvidia_gpu",
            "metal" => "apple_silicon_gpu",
            _ => "cpu",
        };
        Capabilities { capabilities: vec![backend.clone()], device: device.into(), backend }
    }
}

/// The callback of a worker to its manager, once its port is bound and its model has passed the
/// sanity check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyCallback {
    /// Id of the worker, from its flags.
    pub worker_id: String,
    /// Planned bytes of the model.
    pub vram_bytes: u64,
    /// URL of the worker.
    pub uri: String,
    /// The model, from its flags.
    pub model_ref: String,
    /// Backends that it runs on.
    pub capabilities: Vec<String>,
}

/// `POST /v1/worker-heartbeat` on the manager, every 30 seconds after the callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// The worker.
    pub worker: Alive,
    /// Time in RFC 3339.
    pub timestamp: String,
}

/// A worker in its heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alive {
    /// Id of the worker, from its flags.
    pub id: String,
    /// The model, from its flags.
    pub model_id: String,
    /// Device, such as `cuda:0`.
    pub device: String,
    /// Port of the worker.
    pub port: u16,
    /// `ready`, `busy` or `draining`.
    pub status: String,
    /// Name of the program: `sconce`.
    #[serde(default)]
    pub implementation: String,
    /// Version of Sconce.
    pub version: String,
}

/// What a worker sends to its manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Callback {
    /// A worker is ready.
    Ready(ReadyCallback),
    /// A worker is alive.
    Heartbeat(Heartbeat),
}

/// Path of the workers' heartbeats, on the host of the callback URL.
pub const HEARTBEAT_PATH: &str = "/v1/worker-heartbeat";

/// How long the events of a job of `/v1/jobs` wait for a client; then the job is cancelled.
pub const JOB_LIFETIME: Duration = Duration::from_secs(60);

/// A callback URL that contains this is a dry run: nothing is sent.
pub const DRY_RUN: &str = "localhost:9999";

/// Exit code of a worker whose port was in use; the manager restarts it with another port.
pub const PORT_TAKEN: i32 = 98;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn assert_round_trip(event: &Event, want: Value) {
        assert_eq!(serde_json::to_value(event).unwrap(), want);
        assert_eq!(serde_json::from_value::<Event>(want).unwrap(), *event);
    }

    #[test]
    fn events_have_the_documented_json() {
        let started_at = "2025-03-01T12:00:00.000Z".to_string();
        assert_round_trip(
            &Event::Started { job_id: "j".into(), model: "m".into(), started_at: started_at.clone() },
            json!({"type": "started", "job_id": "j", "model": "m", "started_at": started_at}),
        );
        assert_round_trip(&Event::Token { t: "Hi".into(), i: 0 }, json!({"type": "token", "t": "Hi", "i": 0}));
        let metrics = Event::Metrics { tokens_per_sec: 2.5, vram_bytes: 7 };
        assert_round_trip(&metrics, json!({"type": "metrics", "tokens_per_sec": 2.5, "vram_bytes": 7}));
        let end = |stop_reason, matched: Option<&str>| Event::End {
            tokens_out: 3,
            decode_time_ms: 9,
            stop_reason,
            stop_sequence_matched: matched.map(String::from),
        };
        let want = |reason| json!({"type": "end", "tokens_out": 3, "decode_time_ms": 9, "stop_reason": reason});
        assert_round_trip(&end(StopReason::MaxTokens, None), want("MAX_TOKENS"));
        assert_round_trip(&end(StopReason::Eos, None), want("EOS"));
        assert_round_trip(&end(StopReason::Cancelled, None), want("CANCELLED"));
        assert_round_trip(&end(StopReason::Error, None), want("ERROR"));
        let mut stopped = want("STOP_SEQUENCE");
        stopped["stop_sequence_matched"] = json!("\n\n");
        assert_round_trip(&end(StopReason::StopSequence, Some("\n\n")), stopped);
        assert_round_trip(
            &Event::Error(Failure::new(Code::VramOom, "no room")),
            json!({"type": "error", "code": "VRAM_OOM", "message": "no room", "retriable": true}),
        );
    }

    #[test]
    fn error_codes_have_the_documented_names_and_statuses() {
        let of = |code: Code| (serde_json::to_value(code).unwrap().as_str().unwrap().to_string(), code.status());
        let all = [
            (Code::InvalidRequest, "INVALID_REQUEST", 400),
            (Code::ModelLoadFailed, "MODEL_LOAD_FAILED", 500),
            (Code::VramOom, "VRAM_OOM", 500),
            (Code::Internal, "INTERNAL", 500),
            (Code::InsufficientVram, "INSUFFICIENT_VRAM", 503),
            (Code::WorkerUnhealthy, "WORKER_UNHEALTHY", 503),
            (Code::InferenceTimeout, "INFERENCE_TIMEOUT", 504),
            (Code::Cancelled, "CANCELLED", 499),
            (Code::MissingApiKey, "MISSING_API_KEY", 401),
            (Code::InvalidApiKey, "INVALID_API_KEY", 401),
        ];
        for (code, name, status) in all {
            assert_eq!(of(code), (name.to_string(), status));
        }
    }

    #[test]
    fn ready_callbacks_and_heartbeats_are_distinguished() {
        let ready = json!({"worker_id": "w", "vram_bytes": 1, "uri": "http://127.0.0.1:1", "model_ref": "m",
            "capabilities": ["cpu"]});
        assert!(matches!(serde_json::from_value(ready), Ok(Callback::Ready(c)) if c.worker_id == "w"));
        let heartbeat = json!({"worker": {"id": "w", "model_id": "m", "device": "cpu", "port": 1, "status": "ready",
            "version": "0"}, "timestamp": "t"});
        assert!(matches!(serde_json::from_value(heartbeat), Ok(Callback::Heartbeat(h)) if h.worker.id == "w"));
        assert!(serde_json::from_value::<Callback>(json!({"worker_id": "w"})).is_err());
    }

    #[test]
    fn stream_path_of_a_job_is_percent_encoded() {
        assert_eq!(JobCreated::new("j-1").sse_url, "/v1/jobs/j-1/stream");
        assert_eq!(JobCreated::new("a/b é").sse_url, "/v1/jobs/a%2Fb%20%C3%A9/stream");
    }

    #[test]
    fn device_names_map_to_capabilities() {
        let of = |name| serde_json::to_value(Capabilities::of(name)).unwrap();
        let want = json!({"capabilities": ["metal"], "device": "apple_silicon_gpu", "backend": "metal"});
        assert_eq!(of("metal:0"), want);
        assert_eq!(of("cuda:1"), json!({"capabilities": ["cuda"], "device": "nvidia_gpu", "backend": "cuda"}));
        assert_eq!(of("cpu"), json!({"capabilities": ["cpu"], "device": "cpu", "backend": "cpu"}));
    }
}
