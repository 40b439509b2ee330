//! `/info`.

use serde::Serialize;
use utoipa::ToSchema;

/// `GET /info`: the first model in TEI's format, and all models.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Info {
    /// Name of the model in requests.
    pub model_id: String,
    /// Commit of a model from the hub.
    pub model_sha: Option<String>,
    /// Format of weights and activations.
    pub model_dtype: String,
    /// TEI's model type: embedding, classifier, reranker, …
    #[schema(value_type = Object)]
    pub model_type: serde_json::Value,
    /// Most concurrent requests.
    pub max_concurrent_requests: usize,
    /// Longest input, in tokens.
    pub max_input_length: usize,
    /// Most tokens per micro-batch.
    pub max_batch_tokens: usize,
    /// Most texts per micro-batch, if limited.
    pub max_batch_requests: Option<usize>,
    /// Most inputs per request.
    pub max_client_batch_size: usize,
    /// Default of `truncate`.
    pub auto_truncate: bool,
    /// Tokenizer threads.
    pub tokenization_workers: usize,
    /// Version of the server.
    pub version: String,
    /// Commit of the server; always null.
    pub sha: Option<String>,
    /// Label of the Docker image; always null.
    pub docker_label: Option<String>,
    /// All models.
    pub models: Vec<ModelInfo>,
}

/// State of a model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelInfo {
    /// Name of the model in requests.
    pub id: String,
    /// `loading`, `ready`, `failed`, or `resting` (unloaded; the next request loads it again).
    pub state: String,
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
    /// Longest input, in tokens.
    pub max_input_length: Option<usize>,
    /// Embedding dimension.
    pub dimension: Option<usize>,
    /// Planned bytes.
    pub planned_bytes: Option<u64>,
    /// Peak bytes of its tensors.
    pub peak_bytes: Option<u64>,
    /// Op calls since the model was loaded.
    pub ran: Vec<OpCount>,
}

/// Calls of an op on one rung.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OpCount {
    /// Name of the op.
    pub op: String,
    /// Device that ran it.
    pub device: String,
    /// Data type.
    pub dtype: String,
    /// `fused`, `composed` or `host`; `onnx` for nodes of ONNX Runtime.
    pub rung: String,
    /// Number of calls.
    pub calls: u64,
}
