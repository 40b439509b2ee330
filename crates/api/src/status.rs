//! `/v1/status` and `/v1/plan`: what runs where, for people and dashboards.

use crate::admin::Progress;
use crate::tei::OpCount;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Seconds since the server started.
    pub uptime_seconds: u64,
    /// Requests in progress.
    pub requests: RequestStatus,
    /// Planned memory of all models.
    pub memory: MemoryStatus,
    /// The CPU, and the other devices that models run on.
    pub devices: Vec<DeviceStatus>,
    /// All models.
    pub models: Vec<ModelStatus>,
}

/// Requests in progress.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct RequestStatus {
    /// Requests in progress.
    pub running: usize,
    /// The most of them; further ones get status 429.
    pub limit: usize,
}

/// Planned memory of all models.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct MemoryStatus {
    /// Planned bytes of the models that are loaded or loading.
    pub planned_bytes: u64,
    /// The most planned bytes (--memory-budget).
    pub budget_bytes: Option<u64>,
}

/// A device, and what `sconce doctor` found on it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeviceStatus {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub device: String,
    /// The vendor's name for it; on a CPU with the instruction set.
    pub description: String,
    /// Bytes that can still be allocated.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// The kernels that failed in `sconce doctor` and are not used; null if it has not checked the
    /// device.
    pub doctor: Option<Vec<FailedKernel>>,
}

/// A kernel that failed in `sconce doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FailedKernel {
    /// The op.
    pub op: String,
    /// The dtype that it failed in.
    pub dtype: String,
    /// `fused` or `composed`.
    pub rung: String,
}

/// A model of the server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelStatus {
    /// Name of the model in requests.
    pub id: String,
    /// `loading`, `ready`, `failed`, or `resting` (unloaded; the next request loads it again).
    pub state: String,
    /// Why the model could not be loaded.
    pub error: Option<String>,
    /// Load progress, while the model loads.
    pub progress: Option<Progress>,
    /// Task of the model.
    pub task: Option<String>,
    /// Device that the model runs on.
    pub device: Option<String>,
    /// Engine that runs the model: `native`, or another with its version.
    pub engine: Option<String>,
    /// Format of weights and activations.
    pub dtype: Option<String>,
    /// Why the model runs in this format.
    pub dtype_reason: Option<String>,
    /// Source of the model's files.
    pub source: Option<String>,
    /// Longest input, in tokens; the context length of a language model.
    pub max_tokens: Option<usize>,
    /// Embedding dimension.
    pub dimension: Option<usize>,
    /// Requests that use the model now.
    pub leases: usize,
    /// Memory, if the model is loaded.
    pub memory: Option<ModelMemory>,
    /// Queue, if the model is loaded.
    pub queue: Option<ModelQueue>,
    /// Activity of a language model.
    pub generation: Option<Generation>,
    /// Op calls since the model was loaded, by the device and rung that ran them.
    pub ran: Vec<OpCount>,
}

/// Memory of a model.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ModelMemory {
    /// Planned bytes of weights.
    pub weights_bytes: u64,
    /// Planned bytes of the KV cache.
    pub cache_bytes: u64,
    /// Planned bytes of the tensors of a batch.
    pub workspace_bytes: u64,
    /// Bytes that the server has reserved for the model.
    pub planned_bytes: u64,
    /// Peak bytes of its tensors.
    pub peak_bytes: u64,
}

/// Queue of a model.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ModelQueue {
    /// Requests in the queue.
    pub requests: usize,
    /// Tokens in the queue.
    pub tokens: usize,
    /// Sequences of the last batch.
    pub batch_sequences: usize,
    /// Tokens of the last batch.
    pub batch_tokens: usize,
}

/// Activity of a language model since it was loaded.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Generation {
    /// Running sequences.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Used fraction of the KV cache, 0 to 1.
    pub cache_used: f32,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
}

/// Whose plan.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PlanQuery {
    /// Name of a loaded model; by default the first one.
    pub model: Option<String>,
}

/// `GET /v1/plan`: the op calls of one pass of a loaded model, as they were planned.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelPlan {
    /// Name of the model.
    pub model: String,
    /// Task of the model.
    pub task: String,
    /// Device that the model runs on.
    pub device: String,
    /// Format of weights and activations.
    pub dtype: String,
    /// Tokens of the planned batch.
    pub batch_tokens: usize,
    /// The most bytes that tensors of one batch hold at once.
    pub workspace_bytes: u64,
    /// The part that another engine runs, if there is one; its nodes are not among the steps.
    pub graph: Option<String>,
    /// Equal op calls together, in the order of the pass.
    pub steps: Vec<PlanStep>,
}

/// Equal op calls of a pass.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PlanStep {
    /// Name of the op.
    pub op: String,
    /// Where in the model the first call is; may be empty.
    pub at: String,
    /// Shapes and options.
    pub what: String,
    /// Data type.
    pub dtype: String,
    /// `fused`, `composed` or `host`; null if no rung takes the call.
    pub rung: Option<String>,
    /// Number of calls in one pass.
    pub calls: usize,
    /// Calls of this op, data type and rung since the model was loaded.
    pub ran: u64,
    /// Why each better rung does not take the call.
    pub why_not: Vec<String>,
}
