//! `POST /api/chat`.

use super::{AnswerFormat, Cost, KeepAlive, KeepAliveSchema, Logprob, Options, Think};
use crate::openai::tools::{Function, ToolKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A chat request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaChatRequest)]
pub struct ChatRequest {
    /// Name of the model, with or without `:latest`.
    #[schema(min_length = 1)]
    pub model: String,
    /// The conversation. Without messages the model is loaded, or unloaded with `keep_alive` 0.
    pub messages: Option<Vec<Message>>,
    /// Tools that the model may call.
    pub tools: Option<Vec<OllamaTool>>,
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
    /// Return the logprobs of the tokens.
    pub logprobs: Option<bool>,
    /// Number of top logprobs per token, up to 20.
    pub top_logprobs: Option<u32>,
}

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[schema(as = OllamaMessage)]
pub struct Message {
    /// Role: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The text.
    pub content: Option<String>,
    /// Reasoning of an assistant message.
    pub thinking: Option<String>,
    /// Refused unless empty: no model here reads images in a chat.
    pub images: Option<Vec<String>>,
    /// Tool calls of an assistant message.
    pub tool_calls: Option<Vec<MessageCall>>,
    /// Name of the tool whose result this is.
    pub tool_name: Option<String>,
    /// Id of the call whose result this is.
    pub tool_call_id: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaToolCall)]
pub struct MessageCall {
    /// Id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function call.
    pub function: CalledFunction,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaCalledFunction)]
pub struct CalledFunction {
    /// Index of the call within the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Name of the function.
    pub name: String,
    /// Arguments, as an object.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct OllamaTool {
    /// Always `function`.
    #[serde(rename = "type", default)]
    pub kind: ToolKind,
    /// The function.
    pub function: Function,
}

/// The answer to a chat, or a part of it: a line of the stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaChatResponse)]
pub struct ChatAnswer {
    /// Name of the model, as in the request.
    pub model: String,
    /// Time of this part, in RFC 3339.
    pub created_at: String,
    /// The message, or its next part.
    pub message: Answer,
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

/// Message of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaAnswer)]
pub struct Answer {
    /// `assistant`.
    pub role: String,
    /// The text, or its next part.
    pub content: String,
    /// Reasoning, or its next part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Complete tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<MessageCall>,
}
