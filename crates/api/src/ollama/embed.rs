//! `POST /api/embed` and the older `POST /api/embeddings`.

use super::{KeepAlive, KeepAliveSchema, Options};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request for embeddings.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub struct EmbedRequest {
    /// Name of the model, with or without `:latest`.
    #[schema(min_length = 1)]
    pub model: String,
    /// One or several texts; none loads the model.
    pub input: Option<EmbedInput>,
    /// Truncate texts that are longer than the model's limit, instead of refusing them; true by
    /// default.
    pub truncate: Option<bool>,
    /// Truncate embeddings to this dimension.
    pub dimensions: Option<usize>,
    /// How long the model stays loaded after this request.
    #[schema(value_type = Option<KeepAliveSchema>)]
    pub keep_alive: Option<KeepAlive>,
    /// Options, of which `num_ctx` has an effect: the most tokens of a text.
    pub options: Option<Options>,
}

/// One or several texts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedInput)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum EmbedInput {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

impl EmbedInput {
    /// The texts; an empty text alone is none.
    pub fn into_texts(self) -> Vec<String> {
        match self {
            EmbedInput::One(text) if text.is_empty() => Vec::new(),
            EmbedInput::One(text) => vec![text],
            EmbedInput::Several(texts) => texts,
        }
    }
}

/// Embeddings, in the order of the texts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedResponse)]
pub struct EmbedAnswer {
    /// Name of the model, as in the request.
    pub model: String,
    /// One embedding per text, L2-normalized.
    pub embeddings: Vec<Vec<f32>>,
    /// From the request to the end, in nanoseconds.
    pub total_duration: u64,
    /// Waiting for the model to load, in nanoseconds.
    pub load_duration: u64,
    /// Tokens of all texts.
    pub prompt_eval_count: usize,
}

/// A request for the embedding of one text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingsRequest)]
pub struct EmbeddingsRequest {
    /// Name of the model, with or without `:latest`.
    #[schema(min_length = 1)]
    pub model: String,
    /// The text; none loads the model.
    pub prompt: Option<String>,
    /// How long the model stays loaded after this request.
    #[schema(value_type = Option<KeepAliveSchema>)]
    pub keep_alive: Option<KeepAlive>,
    /// Options, of which `num_ctx` has an effect: the most tokens of the text.
    pub options: Option<Options>,
}

/// The embedding of one text.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingsResponse)]
pub struct EmbeddingsAnswer {
    /// The embedding, not L2-normalized, unless the model's embeddings always are.
    pub embedding: Vec<f32>,
}
