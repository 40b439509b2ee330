//! A host's manager of workers.

use crate::worker::Tuning;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Where a manager listens unless told otherwise.
pub const PORT: u16 = 9200;

/// Where workers tell that they are ready.
pub const READY_PATH: &str = "/v2/internal/workers/ready";

/// `POST /v2/workers/start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name; on the manager's host.
    pub model_ref: String,
    /// `auto`, `cpu`, `cuda`, `cuda:0`, …; a kind without a number is the device of that kind with most room.
    #[serde(default = "auto")]
    pub device: String,
    /// The name that requests know the model by; its reference unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How it is kept and run.
    #[serde(default)]
    pub flags: Tuning,
}

fn auto() -> String {
    "auto".into()
}

/// What came of it: the worker is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Started {
    /// The worker's name.
    pub worker_id: String,
    /// The device it was given.
    pub device: String,
    /// Where it listens.
    pub uri: String,
    /// Bytes that it was admitted with.
    pub vram_bytes: u64,
    /// What it is now.
    pub state: State,
}

/// `POST /v2/workers/stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The worker's name.
    pub worker_id: String,
}

/// What came of a stop or a drain that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopping {
    /// The worker's name.
    pub worker_id: String,
    /// What it is now.
    pub state: State,
    /// Requests that it still works on.
    pub active: u64,
}

/// What a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was told to run and has not called back yet.
    Starting,
    /// It takes requests and has none.
    Ready,
    /// It takes requests and has some.
    Busy,
    /// It takes no more.
    Draining,
    /// It does not run, or is no use.
    Failed,
}

impl State {
    /// Every one.
    pub const ALL: [State; 5] = [State::Starting, State::Ready, State::Busy, State::Draining, State::Failed];

    /// In lower case, as in JSON.
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

/// `GET /v2/state`: all that the manager knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Everything {
    /// Of Sconce.
    pub version: String,
    /// Since the manager began.
    pub uptime_seconds: u64,
    /// Where models can run.
    pub devices: Vec<Device>,
    /// Those that run, and those that should.
    pub workers: Vec<Worker>,
    /// Those that ended, the last few: what they were and why.
    pub ended: Vec<Ended>,
    /// Why the state on disk is not what it should be; nothing where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_error: Option<String>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub id: String,
    /// Its maker's name for it.
    pub name: String,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes that workers were admitted with.
    pub allocated_bytes: u64,
    /// Bytes that another worker could be admitted with.
    pub room_bytes: u64,
}

/// A worker, as the manager sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// What requests call its model.
    pub model: String,
    /// Where the model comes from.
    pub model_ref: String,
    /// What the model does; known once it was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Where it runs.
    pub device: String,
    /// What it is.
    pub state: State,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Bytes that it was admitted with.
    pub vram_bytes: u64,
    /// Requests under way.
    pub active: u64,
    /// Tokens of theirs, as far as one can tell beforehand.
    pub outstanding_tokens: u64,
    /// How often it was started again.
    pub restarts: u64,
    /// The last thing that went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What its process said when it last ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Until it is started again, in seconds; of a failed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in_seconds: Option<u64>,
}

/// A worker that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// Its name.
    pub id: String,
    /// Where its model came from.
    pub model_ref: String,
    /// Why.
    pub why: String,
    /// What its process said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// `GET /v1/capabilities`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// Where models can run.
    pub devices: Vec<Capable>,
}

/// A device, as others ask for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capable {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub id: String,
    /// Its maker's name for it.
    pub name: String,
    /// `cpu`, `cuda` or `metal`.
    pub device_type: String,
    /// Memory in all, in GiB.
    pub vram_gb: f64,
    /// Of an NVIDIA GPU: `8.9`.
    pub compute_capability: Option<String>,
}

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The model does not fit.
    InsufficientVram,
    /// There is no such device.
    GpuUnavailable,
    /// There is no such model.
    ModelNotFound,
    /// A worker ended before it was ready.
    WorkerStartFailed,
    /// A worker was not ready in time.
    WorkerStartTimeout,
    /// There is no such worker.
    WorkerNotFound,
    /// The request makes no sense.
    InvalidRequest,
    /// No worker of the model takes requests now.
    WorkerUnavailable,
    /// A worker broke off before it answered.
    WorkerFailed,
    /// A key is wanted and none came, or the wrong one.
    Unauthorized,
}

impl Code {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidRequest => 400,
            Code::Unauthorized => 401,
            Code::ModelNotFound | Code::WorkerNotFound => 404,
            Code::GpuUnavailable => 409,
            Code::WorkerStartFailed => 500,
            Code::WorkerFailed => 502,
            Code::InsufficientVram | Code::WorkerUnavailable => 503,
            Code::WorkerStartTimeout => 504,
        }
    }

    /// Whether the same request may do better later.
    pub fn is_retriable(self) -> bool {
        match self {
            Code::InsufficientVram | Code::WorkerStartTimeout | Code::WorkerUnavailable | Code::WorkerFailed => true,
            Code::GpuUnavailable | Code::ModelNotFound | Code::WorkerStartFailed | Code::WorkerNotFound => false,
            Code::InvalidRequest | Code::Unauthorized => false,
        }
    }
}

/// An error of the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// What, for programs.
    pub error_code: Code,
    /// What, where, and what to do next.
    pub message: String,
    /// Whether the same request may do better later.
    pub retriable: bool,
    /// Numbers and names that belong to it.
    pub details: Value,
}

impl Failure {
    /// With what the code itself says of trying again, and no details.
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
    fn a_start_needs_a_model_and_nothing_unknown() {
        let read = |v: Value| serde_json::from_value::<Start>(v);
        let start = read(json!({"model_ref": "smollm"})).unwrap();
        assert_eq!((start.device.as_str(), start.name), ("auto", None));
        let start = read(json!({"model_ref": "m", "device": "cuda:0", "flags": {"context": 512}})).unwrap();
        assert_eq!((start.device.as_str(), start.flags.context), ("cuda:0", Some(512)));
        assert!(read(json!({"device": "cpu"})).is_err());
        assert!(read(json!({"model_ref": "m", "devise": "cpu"})).is_err());
    }

    #[test]
    fn errors_look_as_the_contract_says() {
        let failure = Failure::new(Code::InsufficientVram, "no room");
        let want = json!({"error_code": "INSUFFICIENT_VRAM", "message": "no room", "retriable": true, "details": {}});
        assert_eq!(serde_json::to_value(failure).unwrap(), want);
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state.name()));
        }
    }
}
