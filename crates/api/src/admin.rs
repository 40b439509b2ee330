//! Model administration: loading and unloading at run time, and load progress.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Load progress of a model.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Progress {
    /// Name of the model.
    pub model: String,
    /// Current stage, for people.
    pub stage: String,
    /// Completed part of the stage, if known.
    pub percent: Option<f32>,
    /// Layers whose weights have been read, while the model loads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_loaded: Option<u64>,
    /// Layers of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_total: Option<u64>,
}

/// `POST /v1/models/load`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct LoadRequest {
    /// A directory or `.gguf` file, a hub id, `pip:NAME`, a short name, as on the command line.
    pub model: String,
    /// Name of the model in requests; by default as on the command line.
    pub name: Option<String>,
    /// Task; by default detected from the files.
    pub task: Option<String>,
    /// Device; by default the server's.
    pub device: Option<String>,
    /// Format of weights and activations: `f32`, `bf16` or `f16`.
    pub dtype: Option<String>,
    /// Context length of a language model, in tokens.
    pub context: Option<usize>,
    /// Respond when the model is loaded, not at once.
    #[serde(default)]
    pub wait: bool,
}

/// `POST /v1/models/unload`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct UnloadRequest {
    /// Name of the model in requests.
    pub model: String,
}

/// State of a model after a load or unload request.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ModelState {
    /// Name of the model in requests.
    pub model: String,
    /// `loading`, `ready` or `unloaded`.
    pub state: String,
    /// Load progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}
