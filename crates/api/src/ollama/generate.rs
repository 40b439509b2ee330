//! `POST /api/generate`.

use super::{AnswerFormat, Cost, KeepAlive, KeepAliveSchema, Logprob, Options, Think};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A completion request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateRequest)]
pub struct GenerateRequest {
    /// Name of the model, with or without `:latest`.
    #[schema(min_length = 1)]
    pub model: String,
    /// The prompt: the user's message. Without one the model is loaded, or unloaded with
    /// `keep_alive` 0.
    pub prompt: Option<String>,
    /// Text after the answer (fill in the middle), for models that were trained for it.
    pub suffix: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// Send the prompt as it is, without the chat template.
    pub raw: Option<bool>,
    /// Format of the answer: `json`, or a JSON schema.
    pub format: Option<AnswerFormat>,
    /// Sampling parameters.
    pub options: Option<Options>,
    /// Stream the answer; true by default.
    pub stream: Option<bool>,
    /// How long the model stays loaded after this request.
    #[schema(value_type = Option<KeepAliveSchema>)]
    pub keep_alive: Option<KeepAlive>,
    /// Whether the model reasons before it answers; by default as its chat template says.
    pub think: Option<Think>,
    /// Refused unless empty: the chat template is that of the model's files.
    pub template: Option<String>,
    /// Refused unless empty: send the conversation to `/api/chat`.
    pub context: Option<Vec<i64>>,
    /// Refused unless empty: no model here reads images in a prompt.
    pub images: Option<Vec<String>>,
    /// Return the logprobs of the tokens.
    pub logprobs: Option<bool>,
    /// Number of top logprobs per token, up to 20.
    pub top_logprobs: Option<u32>,
}

/// The answer to a prompt, or a part of it: a line of the stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateResponse)]
pub struct GenerateAnswer {
    /// Name of the model, as in the request.
    pub model: String,
    /// Time of this part, in RFC 3339.
    pub created_at: String,
    /// The text, or its next part.
    pub response: String,
    /// Reasoning, or its next part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Whether the answer is complete.
    pub done: bool,
    /// Why it ended: `stop`, `length`, `load`, `unload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    /// Logprobs of the tokens of this part, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
    /// Cost of the request, at its end.
    #[serde(flatten)]
    pub cost: Cost,
}
