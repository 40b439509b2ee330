//! Models at run time, and how far one has been loaded: what no other server's dialect has words for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far a model has been loaded.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Progress {
    /// Which model.
    pub model: String,
    /// What is going on, in a few words.
    pub stage: String,
    /// How much of that is done, where it is known.
    pub percent: Option<f32>,
}

/// `POST /v1/models/load`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct LoadRequest {
    /// A directory or `.gguf` file, a hub id, `pip:NAME`, a short name, as on the command line.
    pub model: String,
    /// Its name in requests; by default that of the command line.
    pub name: Option<String>,
    /// What it is to do; by default what its files are made for.
    pub task: Option<String>,
    /// Where it runs; by default where the server's own models do.
    pub device: Option<String>,
    /// The format of weights and activations: `f32`, `bf16` or `f16`.
    pub dtype: Option<String>,
    /// The longest sequence of a language model.
    pub context: Option<usize>,
    /// Answer when it is loaded, not at once.
    #[serde(default)]
    pub wait: bool,
}

/// `POST /v1/models/unload`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct UnloadRequest {
    /// Its name in requests.
    pub model: String,
}

/// How it stands with a model that is loaded or unloaded.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ModelState {
    /// Its name in requests.
    pub model: String,
    /// `loading`, `ready` or `unloaded`.
    pub state: String,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}
