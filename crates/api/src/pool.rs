//! Wire types of the pool manager, which runs the workers of a host.

use crate::worker::Tuning;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Default port of the manager.
pub const PORT: u16 = 9200;

/// Path of the workers' callback.
pub const READY_PATH: &str = "/v2/internal/workers/ready";

/// `POST /v2/workers/start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A directory or .gguf file on the manager's host, a hub id, pip:NAME, or a short name.
    pub model_ref: String,
    /// Number of the GPU, CUDA or Metal. Instead of `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_id: Option<u32>,
    /// `auto`, `cpu`, `cuda`, `cuda:0`, …; a kind without a number is the device of that kind with
    /// the most free memory. By default `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Name of the model in requests; by default its reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Flags of the worker.
    #[serde(default)]
    pub flags: Tuning,
}

impl Start {
    /// The requested device: `auto`, `cuda:0`, and `gpu:0` for a `gpu_id`.
    pub fn requested_device(&self) -> Result<String, Box<Failure>> {
        match (&self.device, self.gpu_id) {
            (Some(device), Some(n)) => {
                let what = format!("`gpu_id` ({n}) and `device` (`{device}`) exclude each other; send one of them");
                Err(Box::new(Failure::new(Code::InvalidRequest, what)))
            }
            (None, Some(n)) => Ok(format!("gpu:{n}")),
            (device, None) => Ok(device.clone().unwrap_or_else(|| "auto".into())),
        }
    }
}

/// Response of a start: the worker is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Started {
    /// Id of the worker.
    pub worker_id: String,
    /// Device assigned to the worker.
    pub device: String,
    /// URL of the worker.
    pub uri: String,
    /// Bytes reserved for the worker.
    pub vram_bytes: u64,
    /// Current state.
    pub state: State,
}

/// `POST /v2/workers/stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Id of the worker.
    pub worker_id: String,
}

/// Response of a stop or drain that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopping {
    /// Id of the worker.
    pub worker_id: String,
    /// Current state.
    pub state: State,
    /// Requests that are still running.
    pub active: u64,
}

/// State of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Started; its callback has not arrived yet.
    Starting,
    /// Accepts requests and has none.
    Ready,
    /// Accepts requests and has some.
    Busy,
    /// Accepts no more requests.
    Draining,
    /// Not running, or unhealthy.
    Failed,
}

impl State {
    /// All states.
    pub const ALL: [State; 5] = [State::Starting, State::Ready, State::Busy, State::Draining, State::Failed];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Busy => "busy",
            State::Draining => "draining",
            State::Failed => "failed",
        }
    }
}

/// `GET /v2/state`: the manager's devices and workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolState {
    /// Version of Sconce.
    pub version: String,
    /// Seconds since the manager started.
    pub uptime_seconds: u64,
    /// Devices of the host.
    pub devices: Vec<Device>,
    /// Running workers, and those that should run.
    pub workers: Vec<Worker>,
    /// The last few workers that ended.
    pub ended: Vec<Ended>,
    /// Why the state could not be saved to disk; absent if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_error: Option<String>,
}

/// A device and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub id: String,
    /// Product name of the device.
    pub name: String,
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes reserved for workers.
    pub allocated_bytes: u64,
    /// Bytes free for another worker.
    pub room_bytes: u64,
}

/// A worker, as the manager sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Id of the worker.
    pub id: String,
    /// Name of its model in requests.
    pub model: String,
    /// Reference of the model.
    pub model_ref: String,
    /// Task of the model; known once it is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Device of the worker.
    pub device: String,
    /// State of the worker.
    pub state: State,
    /// URL of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Bytes reserved for the worker.
    pub vram_bytes: u64,
    /// Running requests.
    pub active: u64,
    /// Estimated tokens of the running requests.
    pub outstanding_tokens: u64,
    /// Number of restarts.
    pub restarts: u64,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Exit code of its last process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Seconds until a failed worker is restarted (backoff).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in_seconds: Option<u64>,
}

/// A worker that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// Id of the worker.
    pub id: String,
    /// Reference of its model.
    pub model_ref: String,
    /// Why it ended.
    pub why: String,
    /// Exit code of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// `GET /v1/capabilities`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// Devices of the host.
    pub devices: Vec<DeviceCapability>,
}

/// A device, in `GET /v1/capabilities`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceCapability {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub id: String,
    /// Product name of the device.
    pub name: String,
    /// `cpu`, `cuda` or `metal`.
    pub device_type: String,
    /// Total memory in GiB.
    pub vram_gb: f64,
    /// Compute capability of an NVIDIA GPU, such as `8.9`.
    pub compute_capability: Option<String>,
}

/// Error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// Not enough memory for the model.
    InsufficientVram,
    /// Unknown or unavailable device.
    GpuUnavailable,
    /// Unknown model.
    ModelNotFound,
    /// The worker ended before it was ready.
    WorkerStartFailed,
    /// The worker was not ready in time.
    WorkerStartTimeout,
    /// Unknown worker.
    WorkerNotFound,
    /// Invalid request.
    InvalidRequest,
    /// No worker of the model accepts requests now.
    WorkerUnavailable,
    /// The worker failed before or during its response.
    WorkerFailed,
    /// Missing or wrong API key.
    Unauthorized,
    /// Not allowed from this host or under this host name.
    Forbidden,
}

impl Code {
    /// HTTP status of the code.
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidRequest => 400,
            Code::Unauthorized => 401,
            Code::Forbidden => 403,
            Code::ModelNotFound | Code::WorkerNotFound => 404,
            Code::GpuUnavailable => 409,
            Code::WorkerStartFailed => 500,
            Code::WorkerFailed => 502,
            Code::InsufficientVram | Code::WorkerUnavailable => 503,
            Code::WorkerStartTimeout => 504,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retriable(self) -> bool {
        match self {
            Code::InsufficientVram | Code::WorkerStartTimeout | Code::WorkerUnavailable | Code::WorkerFailed => true,
            Code::GpuUnavailable | Code::ModelNotFound | Code::WorkerStartFailed | Code::WorkerNotFound => false,
            Code::InvalidRequest | Code::Unauthorized | Code::Forbidden => false,
        }
    }
}

/// Error response of the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// Error code.
    pub error_code: Code,
    /// What failed, on what input, and what to do next.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retriable: bool,
    /// Further values, such as sizes and names.
    pub details: Value,
}

impl Failure {
    /// An error without details; `retriable` follows from the code.
    pub fn new(error_code: Code, message: impl Into<String>) -> Failure {
        let details = Value::Object(serde_json::Map::new());
        Failure { error_code, message: message.into(), retriable: error_code.is_retriable(), details }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn start_needs_a_model_and_refuses_unknown_fields() {
        let read = |v: Value| serde_json::from_value::<Start>(v);
        let start = read(json!({"model_ref": "smollm"})).unwrap();
        assert_eq!((start.requested_device().unwrap().as_str(), &start.name), ("auto", &None));
        let start = read(json!({"model_ref": "m", "device": "cuda:0", "flags": {"context": 512}})).unwrap();
        assert_eq!((start.requested_device().unwrap().as_str(), start.flags.context), ("cuda:0", Some(512)));
        let flags = json!({"task": "rerank", "kv_cache_tokens": 4096, "request_timeout": 1.5});
        let flags = read(json!({"model_ref": "m", "flags": flags})).unwrap().flags;
        assert_eq!(flags.arguments(), ["--task=rerank", "--kv-cache-tokens=4096"]);
        assert_eq!(flags.request_timeout.map(|s| s.to_string()).as_deref(), Some("1.5"));
        assert!(read(json!({"model_ref": "m", "flags": {"request_timeout": -1}})).is_err());
        assert!(read(json!({"device": "cpu"})).is_err());
        assert!(read(json!({"model_ref": "m", "devise": "cpu"})).is_err());
    }

    #[test]
    fn gpu_id_and_device_exclude_each_other() {
        let device = |v: Value| serde_json::from_value::<Start>(v).unwrap().requested_device();
        assert_eq!(device(json!({"model_ref": "m", "gpu_id": 1})).unwrap(), "gpu:1");
        let both = device(json!({"model_ref": "m", "gpu_id": 1, "device": "cpu"})).unwrap_err();
        assert_eq!(both.error_code, Code::InvalidRequest);
        assert!(serde_json::from_value::<Start>(json!({"model_ref": "m", "gpu_id": -1})).is_err());
    }

    #[test]
    fn errors_and_states_have_the_documented_json() {
        let failure = Failure::new(Code::InsufficientVram, "no room");
        let want = json!({"error_code": "INSUFFICIENT_VRAM", "message": "no room", "retriable": true, "details": {}});
        assert_eq!(serde_json::to_value(failure).unwrap(), want);
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state.name()));
        }
    }
}
