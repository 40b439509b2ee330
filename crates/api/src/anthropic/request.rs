//! Requests to `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! Blocks, tools and choices are structs with a `type`, not tagged enums: serde buffers the content
//! of a tagged enum, and then neither the path of an error nor an unknown field within is known.

use crate::openai::chat::ReasoningEffort;
use crate::text_or::TextOr;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A request for a message, or for the number of its prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// Name of the model; by default the first that generates text.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<InputMessage>,
    /// Most generated tokens, thoughts included; by default as many as fit into the context.
    pub max_tokens: Option<usize>,
    /// The system prompt.
    #[schema(value_type = Option<TextContent>)]
    pub system: Option<TextOr<Vec<InputBlock>>>,
    /// Up to four texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Stream the answer.
    pub stream: Option<bool>,
    /// Sampling temperature: divides the logits; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Seed of the random numbers for sampling.
    pub seed: Option<i64>,
    /// Tools that the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether the model may or must call a tool.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model reasons before it answers; by default as its chat template says.
    pub thinking: Option<Thinking>,
    /// Effort and format of the answer.
    pub output_config: Option<OutputConfig>,
    /// Accepted and ignored.
    pub metadata: Option<Metadata>,
    /// Accepted: the prefix cache keeps every prompt.
    pub cache_control: Option<CacheControl>,
    /// Accepted and ignored.
    pub service_tier: Option<String>,
    /// Refused: the server runs no tools.
    #[schema(value_type = Option<Object>)]
    pub container: Option<Value>,
    /// Refused: the server runs no tools.
    #[schema(value_type = Option<Vec<Object>>)]
    pub mcp_servers: Option<Value>,
}

/// A message of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicInputMessage)]
pub struct InputMessage {
    /// Role.
    pub role: Role,
    /// The content.
    #[schema(value_type = BlocksContent)]
    pub content: TextOr<Vec<InputBlock>>,
}

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicRole)]
pub enum Role {
    /// The user, and results of tools.
    User,
    /// The model.
    Assistant,
    /// Instructions in the middle of a conversation.
    System,
}

/// A block of a message. Which fields it has depends on its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicInputBlock)]
pub struct InputBlock {
    /// Type of the block.
    #[serde(rename = "type")]
    #[schema(value_type = InputBlockKind)]
    pub kind: String,
    /// Of `text`: the text.
    pub text: Option<String>,
    /// Of `thinking`: the thought, as an earlier response had it.
    pub thinking: Option<String>,
    /// Of `thinking`: its signature, which is not checked.
    pub signature: Option<String>,
    /// Of `redacted_thinking`: ignored, because only its maker can read it.
    pub data: Option<String>,
    /// Of `tool_use`: the id of the call.
    pub id: Option<String>,
    /// Of `tool_use`: the name of the tool.
    pub name: Option<String>,
    /// Of `tool_use`: the arguments.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Map<String, Value>>,
    /// Of `tool_result`: the id of the call.
    pub tool_use_id: Option<String>,
    /// Of `tool_result`: the result.
    #[schema(value_type = Option<TextContent>)]
    pub content: Option<TextOr<Vec<InputBlock>>>,
    /// Of `tool_result`: whether the tool failed.
    pub is_error: Option<bool>,
    /// Accepted: the prefix cache keeps every prompt.
    pub cache_control: Option<CacheControl>,
    /// Accepted and ignored.
    #[schema(value_type = Option<Vec<Object>>)]
    pub citations: Option<Value>,
}

/// Type of a block.
#[derive(ToSchema)]
#[schema(as = AnthropicInputBlockKind, rename_all = "snake_case")]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum InputBlockKind {
    /// A text.
    Text,
    /// A thought.
    Thinking,
    /// A thought that cannot be read.
    RedactedThinking,
    /// A tool call of the model.
    ToolUse,
    /// The result of a tool call.
    ToolResult,
}

/// OpenAPI schema of the content of a message.
#[derive(ToSchema)]
#[schema(as = AnthropicContent)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum BlocksContent {
    /// A text.
    Text(String),
    /// Blocks.
    Blocks(Vec<InputBlock>),
}

/// OpenAPI schema of a content that has texts only.
#[derive(ToSchema)]
#[schema(as = AnthropicTextContent)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum TextContent {
    /// A text.
    Text(String),
    /// Texts.
    Blocks(Vec<TextBlock>),
}

/// OpenAPI schema of a block of text.
#[derive(ToSchema)]
#[schema(as = AnthropicTextBlock)]
#[allow(dead_code, reason = "read by the derive alone")]
pub struct TextBlock {
    /// `text`.
    #[schema(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
}

/// A mark for a prompt cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheControl {
    /// `ephemeral`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Ignored: how long a prefix is kept depends on the memory that others need.
    pub ttl: Option<String>,
}

/// About the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicMetadata)]
pub struct Metadata {
    /// Ignored.
    pub user_id: Option<String>,
}

/// A tool that the model may call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicTool)]
pub struct Tool {
    /// `custom` if set; tools that Anthropic defines are refused.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// What the tool does, and when to call it.
    pub description: Option<String>,
    /// JSON schema of its arguments. A tool must have one.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Map<String, Value>>,
    /// Whether arguments must satisfy the schema. With `tool_choice` `any` or `tool` they always do.
    pub strict: Option<bool>,
    /// Accepted: the prefix cache keeps every prompt.
    pub cache_control: Option<CacheControl>,
    /// Accepted: arguments are always streamed as they are generated.
    pub eager_input_streaming: Option<bool>,
}

/// Whether the model may or must call a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicToolChoice)]
pub struct ToolChoice {
    /// Kind of choice.
    #[serde(rename = "type")]
    pub kind: ToolChoiceKind,
    /// Of `tool`: the tool that must be called.
    pub name: Option<String>,
    /// At most one call per answer.
    pub disable_parallel_tool_use: Option<bool>,
}

/// Kind of choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoiceKind {
    /// The model decides.
    Auto,
    /// The model must call a tool.
    Any,
    /// The model must call this tool.
    Tool,
    /// The model must not call a tool.
    None,
}

/// Whether the model reasons before it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Thinking {
    /// Whether it reasons.
    #[serde(rename = "type")]
    pub kind: ThinkingKind,
    /// Of `enabled`: most tokens of the thought; less than `max_tokens`.
    pub budget_tokens: Option<usize>,
    /// What the response has of the thought.
    pub display: Option<ThinkingDisplay>,
}

/// Whether the model reasons before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingKind {
    /// It reasons.
    Enabled,
    /// It does not.
    Disabled,
    /// It decides, by `effort`.
    Adaptive,
}

/// What the response has of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingDisplay {
    /// The thought; it is not summarized, but as the model wrote it.
    Summarized,
    /// Nothing.
    Omitted,
}

/// Effort and format of the answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputConfig {
    /// How much a model that reasons thinks before it answers.
    pub effort: Option<ReasoningEffort>,
    /// Structured output.
    pub format: Option<OutputFormat>,
}

/// Structured output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputFormat)]
pub struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub kind: OutputFormatKind,
    /// The schema that the answer satisfies.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// Kind of structured output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormatKind {
    /// JSON that satisfies a schema.
    JsonSchema,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn contents_are_texts_or_blocks() {
        let request: MessagesRequest = serde_json::from_value(json!({
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "b"}]},
            ],
            "thinking": {"type": "enabled", "budget_tokens": 4},
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }))
        .unwrap();
        assert_eq!(request.messages.len(), 3);
        assert!(matches!(&request.messages[0].content, TextOr::Text(text) if text == "a"));
        assert!(matches!(&request.messages[1].content, TextOr::Other(blocks) if blocks[0].kind == "tool_use"));
        assert!(matches!(&request.system, Some(TextOr::Other(blocks)) if blocks.len() == 1));
        let wrong = json!({"messages": [{"role": "critic", "content": "a"}]});
        assert!(serde_json::from_value::<MessagesRequest>(wrong).unwrap_err().to_string().contains("critic"));
    }
}
