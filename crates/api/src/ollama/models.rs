//! The models of a server: listing, describing, downloading and deleting them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// `GET /api/version`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaVersion)]
pub struct Version {
    /// The version of Ollama whose API this is: clients choose what they send by it.
    pub version: String,
    /// The version of Sconce.
    pub sconce: String,
}

/// What a model is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaModelDetails)]
pub struct ModelDetails {
    /// Always empty: no model here is derived from another one.
    pub parent_model: String,
    /// Format of the weights: `gguf`, `safetensors`, `torch`, `onnx`.
    pub format: String,
    /// Architecture.
    pub family: String,
    /// The same, as a list.
    pub families: Vec<String>,
    /// Number of parameters, such as `134.5M`; empty if unknown.
    pub parameter_size: String,
    /// Format of the matrices in the files, such as `Q4_1`; empty if unknown.
    pub quantization_level: String,
}

/// `GET /api/tags`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaModelList)]
pub struct Listing {
    /// The models that requests may name.
    pub models: Vec<Listed>,
}

/// A model of the server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaListedModel)]
pub struct Listed {
    /// Its name, with `:latest` if it has no tag.
    pub name: String,
    /// The same.
    pub model: String,
    /// When its files were last changed, in RFC 3339.
    pub modified_at: String,
    /// Bytes of its files.
    pub size: u64,
    /// Changes when the files change: sha256 of their names, sizes and times, not of their content.
    pub digest: String,
    /// What it is.
    pub details: ModelDetails,
}

/// `GET /api/ps`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaRunningList)]
pub struct RunningList {
    /// The models in memory.
    pub models: Vec<Running>,
}

/// A model in memory.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaRunningModel)]
pub struct Running {
    /// Its name, with `:latest` if it has no tag.
    pub name: String,
    /// The same.
    pub model: String,
    /// Planned bytes.
    pub size: u64,
    /// As in `/api/tags`.
    pub digest: String,
    /// What it is.
    pub details: ModelDetails,
    /// When it is unloaded unless a request comes, in RFC 3339; in 100 years if never.
    pub expires_at: String,
    /// Planned bytes on a GPU; 0 on the CPU.
    pub size_vram: u64,
    /// Longest text in tokens; for language models prompt and answer.
    pub context_length: usize,
}

/// `POST /api/show`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaShowRequest)]
pub struct ShowRequest {
    /// Name of the model, with or without `:latest`.
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
}

/// What a model is and can do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaShowResponse)]
pub struct ShowAnswer {
    /// The chat template in Jinja; empty if the model has none or is not loaded.
    pub template: String,
    /// Sampling parameters that the model's files recommend, one per line; empty if it is not loaded.
    pub parameters: String,
    /// What the model is.
    pub details: ModelDetails,
    /// Architecture, parameters and limits, under the names of GGUF metadata.
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking`, `insert`, `embedding`, and for other tasks their names.
    pub capabilities: Vec<String>,
    /// When its files were last changed, in RFC 3339.
    pub modified_at: String,
}

/// `POST /api/pull`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaPullRequest)]
pub struct PullRequest {
    /// The model to download: a short name, or a hub id (`org/name:Q4_K_M`, also after `hf.co/`).
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
    /// Stream the progress; true by default.
    pub stream: Option<bool>,
}

/// Progress of a download: a line of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaPullProgress)]
pub struct PullProgress {
    /// What happens; `success` at the end.
    pub status: String,
    /// The file that is downloaded: clients show one progress bar for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its bytes; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}

/// `DELETE /api/delete`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaDeleteRequest)]
pub struct DeleteRequest {
    /// The model to delete from the cache.
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
}
