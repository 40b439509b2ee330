//! A worker: one model behind one port, and whoever started it. What it is started with is [`Launch`].

mod execute;
mod launch;

pub use execute::{Execute, MOST_STOPS, MOST_TOKENS, Violation};
pub use launch::{Launch, Tuning};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a stream of `/execute` says, tagged by `type`. One `started`, any `token`s, then exactly one `end` or `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The job was taken.
    Started {
        /// The job's own name, as the request gave it.
        job_id: String,
        /// The model that answers.
        model: String,
        /// When, in RFC 3339.
        started_at: String,
    },
    /// The answer grows, by whole characters.
    Token {
        /// What is new.
        t: String,
        /// The event's place, from 0.
        i: u64,
    },
    /// How it went; before the end.
    Metrics {
        /// New tokens a second.
        tokens_per_sec: f64,
        /// Bytes that the model takes.
        vram_bytes: u64,
    },
    /// The answer is complete, or was cut short on purpose.
    End {
        /// New tokens.
        tokens_out: u64,
        /// From the first to the last, in milliseconds.
        decode_time_ms: u64,
        /// Why it ended.
        stop_reason: StopReason,
        /// The stop text that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_sequence_matched: Option<String>,
    },
    /// It failed.
    Error(Failure),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StopReason {
    /// No more was asked for, or there was no more room.
    MaxTokens,
    /// The model said so.
    Eos,
    /// One of the stop texts came.
    StopSequence,
    /// Whoever asked has gone, or said so.
    Cancelled,
    /// It failed on the way.
    Error,
}

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The request makes no sense; its `errors` say which fields.
    InvalidRequest,
    /// The model could not be loaded.
    ModelLoadFailed,
    /// Memory ran out during the request.
    VramOom,
    /// A bug of ours.
    Internal,
    /// The model does not fit.
    InsufficientVram,
    /// It is not ready, or not any more.
    WorkerUnhealthy,
    /// It took longer than allowed.
    InferenceTimeout,
    /// Whoever asked has gone.
    Cancelled,
    /// A key is wanted and none came.
    MissingApiKey,
    /// A key came, and it is the wrong one.
    InvalidApiKey,
}

impl Code {
    /// The HTTP status that goes with it.
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

    /// Whether the same request may do better later, or elsewhere.
    pub fn is_retriable(self) -> bool {
        match self {
            Code::VramOom | Code::InsufficientVram | Code::WorkerUnhealthy | Code::InferenceTimeout => true,
            Code::InvalidRequest | Code::ModelLoadFailed | Code::Internal | Code::Cancelled => false,
            Code::MissingApiKey | Code::InvalidApiKey => false,
        }
    }
}

/// An error, as a body and in a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// What, for programs.
    pub code: Code,
    /// What, where, and what to do next.
    pub message: String,
    /// Whether the same request may do better later, or elsewhere.
    pub retriable: bool,
    /// Of an invalid request: every field that is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Violation>,
}

impl Failure {
    /// With what the code itself says of trying again.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), retriable: code.is_retriable(), errors: Vec::new() }
    }

    /// A request that makes no sense.
    pub fn invalid(errors: Vec<Violation>) -> Failure {
        let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
        let message = format!("the request is not valid: {}", fields.join(", "));
        Failure { errors, ..Failure::new(Code::InvalidRequest, message) }
    }
}

/// `POST /cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancel {
    /// The job, as its request named it.
    pub job_id: String,
}

/// `GET /health` of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `healthy`, `loading`, `draining` or `unhealthy`.
    pub status: String,
    /// Whom one is talking to: a manager that comes back makes sure of it.
    pub worker_id: String,
    /// The model.
    pub model: String,
    /// Whether its weights are in the device's memory.
    pub resident: bool,
    /// What its weights are kept in.
    pub quant_kind: String,
    /// Bytes that it takes there.
    pub vram_bytes_used: u64,
    /// How it makes tokens of a text.
    pub tokenizer_kind: String,
    /// Words that it knows.
    pub vocab_size: u64,
    /// The longest text, or conversation, in tokens.
    pub context_length: u64,
    /// Since it began.
    pub uptime_seconds: u64,
    /// `cpu`, `nvidia_gpu` or `apple_silicon_gpu`.
    pub device: String,
    /// `cpu`, `cuda` or `metal`.
    pub backend: String,
}

/// `GET /v1/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// Whether requests are answered.
    pub ready: bool,
    /// `loading`, `ready`, `draining` or `failed`.
    pub state: String,
    /// Whether the model is there.
    pub model_loaded: bool,
}

/// One event of `GET /v1/loading/progress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// What is being done: `loading`, …, at last `ready` or `failed`.
    pub stage: String,
    /// Layers that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_loaded: Option<u64>,
    /// Of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_total: Option<u64>,
    /// Megabytes of the device's memory that are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_mb: Option<u64>,
    /// How much of the stage is done, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f32>,
    /// Of a failure: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a worker can do, and on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// The backends it was built with and runs on: `["metal"]`.
    pub capabilities: Vec<String>,
    /// `cpu`, `nvidia_gpu` or `apple_silicon_gpu`.
    pub device: String,
    /// `cpu`, `cuda` or `metal`.
    pub backend: String,
}

impl Capabilities {
    /// Of a device by its name in Sconce: `cpu`, `cuda:0`, `metal:0`.
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

/// What a worker tells whoever started it, once its port is bound and its model has passed its self-check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Called {
    /// Its name, from its flags.
    pub worker_id: String,
    /// Bytes that the model takes.
    pub vram_bytes: u64,
    /// Where it listens.
    pub uri: String,
    /// The model, from its flags.
    pub model_ref: String,
    /// The backends it runs on.
    pub capabilities: Vec<String>,
}

/// What it tells every 30 seconds from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// Itself.
    pub worker: Alive,
    /// When, in RFC 3339.
    pub timestamp: String,
}

/// A worker, of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Alive {
    /// Its name, from its flags.
    pub id: String,
    /// The model, from its flags.
    pub model_id: String,
    /// The device that it runs on: `cuda:0`.
    pub device: String,
    /// Where it listens.
    pub port: u16,
    /// `ready`, `busy` or `draining`.
    pub status: String,
    /// Of Sconce.
    pub version: String,
}

/// What may come to a callback URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Callback {
    /// A worker is ready.
    Called(Called),
    /// A worker is still there.
    Heartbeat(Heartbeat),
}

/// A callback URL with this in it is nobody's: nothing is sent there.
pub const DRY_RUN: &str = "localhost:9999";

/// The exit code of a worker whose port was taken: whoever started it gives it another one and starts it again.
pub const PORT_TAKEN: i32 = 98;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn same(event: &Event, want: Value) {
        assert_eq!(serde_json::to_value(event).unwrap(), want);
        assert_eq!(serde_json::from_value::<Event>(want).unwrap(), *event);
    }

    #[test]
    fn events_look_as_the_contract_says() {
        let started_at = "2025-03-01T12:00:00.000Z".to_string();
        same(
            &Event::Started { job_id: "j".into(), model: "m".into(), started_at: started_at.clone() },
            json!({"type": "started", "job_id": "j", "model": "m", "started_at": started_at}),
        );
        same(&Event::Token { t: "Hi".into(), i: 0 }, json!({"type": "token", "t": "Hi", "i": 0}));
        let metrics = Event::Metrics { tokens_per_sec: 2.5, vram_bytes: 7 };
        same(&metrics, json!({"type": "metrics", "tokens_per_sec": 2.5, "vram_bytes": 7}));
        let end = |stop_reason, matched: Option<&str>| Event::End {
            tokens_out: 3,
            decode_time_ms: 9,
            stop_reason,
            stop_sequence_matched: matched.map(String::from),
        };
        let want = |reason| json!({"type": "end", "tokens_out": 3, "decode_time_ms": 9, "stop_reason": reason});
        same(&end(StopReason::MaxTokens, None), want("MAX_TOKENS"));
        same(&end(StopReason::Eos, None), want("EOS"));
        same(&end(StopReason::Cancelled, None), want("CANCELLED"));
        same(&end(StopReason::Error, None), want("ERROR"));
        let mut stopped = want("STOP_SEQUENCE");
        stopped["stop_sequence_matched"] = json!("\n\n");
        same(&end(StopReason::StopSequence, Some("\n\n")), stopped);
        same(
            &Event::Error(Failure::new(Code::VramOom, "no room")),
            json!({"type": "error", "code": "VRAM_OOM", "message": "no room", "retriable": true}),
        );
    }

    #[test]
    fn codes_have_their_statuses() {
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
    fn callbacks_are_told_apart() {
        let called = json!({"worker_id": "w", "vram_bytes": 1, "uri": "http://127.0.0.1:1", "model_ref": "m",
            "capabilities": ["cpu"]});
        assert!(matches!(serde_json::from_value(called), Ok(Callback::Called(c)) if c.worker_id == "w"));
        let beat = json!({"worker": {"id": "w", "model_id": "m", "device": "cpu", "port": 1, "status": "ready",
            "version": "0"}, "timestamp": "t"});
        assert!(matches!(serde_json::from_value(beat), Ok(Callback::Heartbeat(h)) if h.worker.id == "w"));
        assert!(serde_json::from_value::<Callback>(json!({"worker_id": "w"})).is_err());
    }

    #[test]
    fn devices_have_capabilities() {
        let of = |name| serde_json::to_value(Capabilities::of(name)).unwrap();
        let want = json!({"capabilities": ["metal"], "device": "apple_silicon_gpu", "backend": "metal"});
        assert_eq!(of("metal:0"), want);
        assert_eq!(of("cuda:1"), json!({"capabilities": ["cuda"], "device": "nvidia_gpu", "backend": "cuda"}));
        assert_eq!(of("cpu"), json!({"capabilities": ["cpu"], "device": "cpu", "backend": "cpu"}));
    }
}
