//! A message of the model: the response of `POST /v1/messages`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A message of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub struct Message {
    /// Unique id.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// Name of the model.
    pub model: String,
    /// The content.
    pub content: Vec<ContentBlock>,
    /// Why the message ended; null while it is streamed.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that ended the message.
    pub stop_sequence: Option<String>,
    /// Token usage.
    pub usage: Usage,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AnthropicContentBlock)]
pub enum ContentBlock {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A thought of a model that reasons.
    Thinking {
        /// The thought.
        thinking: String,
        /// Opaque; only says which message the thought belongs to.
        signature: String,
    },
    /// A tool call.
    ToolUse {
        /// Id of the call, which the block with its result repeats.
        id: String,
        /// Name of the tool.
        name: String,
        /// The arguments.
        #[schema(value_type = Object)]
        input: Map<String, Value>,
    },
}

/// Why a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    EndTurn,
    /// `max_tokens` was reached.
    MaxTokens,
    /// One of `stop_sequences`.
    StopSequence,
    /// The model calls tools.
    ToolUse,
    /// The context is full.
    ModelContextWindowExceeded,
}

/// Token usage of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicUsage)]
pub struct Usage {
    /// Tokens of the prompt that were not found in the prefix cache.
    pub input_tokens: usize,
    /// Always 0: the prefix cache keeps prompts without being asked to.
    pub cache_creation_input_tokens: usize,
    /// Tokens of the prompt found in the prefix cache.
    pub cache_read_input_tokens: usize,
    /// Generated tokens, thoughts included.
    pub output_tokens: usize,
    /// Details of the generated tokens.
    pub output_tokens_details: OutputTokensDetails,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputTokensDetails)]
pub struct OutputTokensDetails {
    /// Tokens of thoughts.
    pub thinking_tokens: usize,
}

/// The response of `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCount {
    /// Tokens of the prompt: system prompt, messages and tools.
    pub input_tokens: usize,
}
